// The opaque page tokens of ListJobs and ListEvents: the place of a page's last job or event, so that pages
// neither repeat nor skip any while others come, and a mark of what the list is of: a token is of no list
// with another filter or order. A job that ends meanwhile has another place in the order of ends: later pages
// of `end_time desc` have it no more, those of `end_time` may have it again. Opaque means that clients must
// not read it; it holds no secret.
//
// Pure. Errors: INVALID_ARGUMENT with words that go on after a field's name.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

#include "coordinator/store/state_store.h"

namespace fsdpd {

// "" for a list without either, whose tokens an older release takes too.
std::string ListMark(absl::string_view filter, absl::string_view order_by);

std::string EncodePageToken(const JobCursor& cursor, absl::string_view mark = "");
absl::StatusOr<JobCursor> DecodePageToken(const std::string& token, absl::string_view mark = "");

// Of events: a sequence.
std::string EncodeEventToken(int64_t cursor, absl::string_view mark = "");
absl::StatusOr<int64_t> DecodeEventToken(const std::string& token, absl::string_view mark = "");

}  // namespace fsdpd
