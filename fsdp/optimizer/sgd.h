// SGD optimizer with optional (Nesterov) momentum and coupled weight decay, equal to torch.optim.SGD with
// dampening 0. Uses at::_fused_sgd_, whose CPU and CUDA kernels divide by grad_scale and return early on
// found_inf.
//
// Momentum starts at zero, so the first step's momentum is the gradient without a special case, even if
// earlier steps were skipped.
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
