#include "coordinator/admission.h"

#include <absl/strings/str_cat.h>

#include "base/limits.h"
#include "base/text.h"
#include "coordinator/errors.h"
#include "coordinator/spec_shape.h"
#include "fsdp/plan/rules.h"

namespace fsdpd {

absl::Status CheckSize(const v1::JobSpec& spec) {
  const int64_t bytes = static_cast<int64_t>(spec.ByteSizeLong());
  if (bytes <= kMaxJobSpecBytes) return absl::OkStatus();
  return BadField("spec", absl::StrCat("has ", HumanBytes(bytes), "; at most ", HumanBytes(kMaxJobSpecBytes),
                                       " are allowed"));
}

Plan Admission::Examine(const v1::JobSpec& spec, int64_t budget_bytes_per_rank) const {
  Violations shape = CheckShape(spec);
  if (HasErrors(shape)) {
    // The rules would read what the spec does not mean. They are asked all the same, so that every fault is
    // told.
    Plan refused;
    refused.faults = CheckJob(spec);
    refused.faults.insert(refused.faults.begin(), shape.begin(), shape.end());
    return refused;
  }
  if (budget_bytes_per_rank > 0) return MakePlan(spec, budget_bytes_per_rank);
  const v1::Device device = spec.resources().device();
  return MakePlan(spec, budget_(device == v1::DEVICE_UNSPECIFIED ? v1::DEVICE_CUDA : device));
}

}  // namespace fsdpd
