// SGD with momentum or without, plain or Nesterov's, decay added to the gradient: torch.optim.SGD with
// dampening 0, by at::_fused_sgd_, whose CPU and CUDA kernels both divide by grad_scale and return early on
// found_inf.
//
// The momentum starts at zero, so the first step's is the gradient itself with no case of its own; so it is
// too after first steps that were skipped.
#pragma once

#include <vector>

#include "fsdp/optimizer/optimizer.h"
#include "fsdp/optimizer/update_groups.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class Sgd : public Optimizer {
 public:
  // `groups` by bucket.
  Sgd(const OptimizerConfig& config, std::vector<std::vector<UpdateGroup>> groups);

  void Restore(int64_t steps_taken) override;
  void BeginStep(int64_t step) override;
  void Count(const StepScalars& scalars) override;
  void Update(int bucket, const BucketShard& shard, const StepScalars& scalars) override;

 private:
  const OptimizerConfig config_;
  const std::vector<std::vector<UpdateGroup>> groups_;
};

}  // namespace fsdpd
