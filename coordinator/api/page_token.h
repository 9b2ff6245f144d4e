// Opaque page tokens of ListJobs and ListEvents. A token holds the position of the page's last job or event,
// so that pages neither repeat nor skip entries while others are added. It also holds a fingerprint of the
// list's order: a token is invalid for any other order. A job that ends during paging moves in the order of
// end times: later pages of `end_time desc` omit it, and those of `end_time` may repeat it. Opaque
// means that clients must not parse it; it is not secret.
//
// Pure. Errors: INVALID_ARGUMENT with a text that continues a field's name.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

#include "coordinator/store/state_store.h"

namespace fsdpd {

// Returns "" for a list without order, whose tokens older releases accept.
std::string ListMark(absl::string_view order_by);

std::string EncodePageToken(const JobCursor& cursor, absl::string_view mark = "");
absl::StatusOr<JobCursor> DecodePageToken(const std::string& token, absl::string_view mark = "");

// For events: a sequence number.
std::string EncodeEventToken(int64_t cursor, absl::string_view mark = "");
absl::StatusOr<int64_t> DecodeEventToken(const std::string& token, absl::string_view mark = "");

}  // namespace fsdpd
