#include "coordinator/admission.h"

#include <absl/strings/str_cat.h>

#include "base/limits.h"
#include "base/text.h"
#include "coordinator/errors.h"
#include "coordinator/spec_shape.h"

namespace fsdpd {

absl::Status CheckSize(const v1::JobSpec& spec) {
  const int64_t bytes = static_cast<int64_t>(spec.ByteSizeLong());
  if (bytes <= kMaxJobSpecBytes) return absl::OkStatus();
  return BadField("spec", absl::StrCat("has ", HumanBytes(bytes), "; at most ", HumanBytes(kMaxJobSpecBytes),
                                       " are allowed"));
}

Plan Admission::Examine(const v1::JobSpec& spec, int64_t budget_bytes_per_rank) const {
  const Violations shape = CheckShape(spec);
  // A number without a name is no value of its field; the rules judge what is left.
  std::vector<std::string> unread;
  for (const Violation& fault : shape) {
    if (fault.rule == kUnknownEnum) unread.push_back(fault.field);
  }
  const v1::Device device = spec.resources().device();
  const int64_t budget = budget_bytes_per_rank > 0
                             ? budget_bytes_per_rank
                             : budget_(device == v1::DEVICE_UNSPECIFIED ? v1::DEVICE_CUDA : device);
  Plan plan = MakePlan(spec, budget, unread);
  plan.faults.insert(plan.faults.begin(), shape.begin(), shape.end());
  return plan;
}

}  // namespace fsdpd
