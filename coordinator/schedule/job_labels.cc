#include "coordinator/schedule/job_labels.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {

absl::StatusOr<Labels> CheckedLabels(const Labels& labels) {
  if (labels.size() > kMaxLabels)
    return absl::InvalidArgumentError(
        absl::StrCat("has too many labels (got ", labels.size(), ", want at most ", kMaxLabels, ")"));
  Labels sorted = labels;
  std::sort(sorted.begin(), sorted.end(),
            [](const v1::Label& a, const v1::Label& b) { return a.key() < b.key(); });
  for (int i = 0; i < sorted.size(); ++i) {
    FSDPD_RETURN_IF_ERROR(CheckLabelKey(sorted[i].key()));
    FSDPD_RETURN_IF_ERROR(CheckLabelValue(sorted[i].value()));
    if (i > 0 && sorted[i].key() == sorted[i - 1].key())
      return absl::InvalidArgumentError(absl::StrCat("has duplicate key '", sorted[i].key(), "'"));
  }
  return sorted;
}

}  // namespace fsdpd
