// A whole job in one process: ranks are threads over local communicators, everything else is what a rank
// process runs. For tests, and for comparing losses with other engines.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "fsdp/plan/plan.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

struct LocalJobResult {
  std::vector<std::vector<v1::StepReport>> reports;  // By rank, then by step.
  std::vector<float> weights;  // After the last step: all parameters, one after the other in layout order.
};

// The plan of a spec as text of JobSpec in JSON; INVALID_ARGUMENT with every fault when it is refused.
absl::StatusOr<Plan> PlanOfJson(const std::string& json);

// `weights`: initial values in the order of LocalJobResult::weights; empty for the model's own.
// Returns the first error of the lowest rank that has one.
absl::StatusOr<LocalJobResult> RunLocalJob(const Plan& plan, const std::vector<float>& weights = {});

}  // namespace fsdpd
