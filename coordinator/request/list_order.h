// Order of list calls (`order_by`, a subset of AIP-132), and the error for `filter`, which is no longer
// supported.
//
// Pure. Errors are those of errors.h, with the field.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace fsdpd {

struct ListOrder {
  size_t field = 0;  // Index into the fields that a list may be ordered by.
  bool descending = false;
};

// Parses "FIELD", "FIELD asc" or "FIELD desc", case-insensitive. Empty text returns `by_default`.
absl::StatusOr<ListOrder> ParseListOrder(absl::string_view text, const std::vector<std::string>& fields,
                                         ListOrder by_default);

// INVALID_ARGUMENT unless `filter` is empty.
absl::Status RejectFilter(absl::string_view filter);

}  // namespace fsdpd
