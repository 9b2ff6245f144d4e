// AdamW optimizer: decoupled weight decay and bias-corrected moments, equal to torch.optim.AdamW. Uses
// at::_fused_adamw_ on CPU and our own kernel on CUDA.
//
// Bias correction counts the applied steps, on the device: a skipped step does not advance it. A run that
// starts at step n without Restore() counts from n, as if no earlier step had been skipped.
#pragma once

#include <vector>

#include "fsdp/optimizer/optimizer.h"
#include "fsdp/optimizer/update_groups.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class AdamW : public Optimizer {
 public:
  // `groups` by bucket.
  AdamW(const OptimizerConfig& config, std::vector<std::vector<UpdateGroup>> groups, at::Device device);

  void Restore(int64_t steps_taken) override;
  void BeginStep(int64_t step) override;
  void Count(const StepScalars& scalars) override;
  void Update(int bucket, const BucketShard& shard, const StepScalars& scalars) override;

 private:
  void UpdateOnCuda(int bucket, const BucketShard& shard, const StepScalars& scalars) const;

  const OptimizerConfig config_;
  const std::vector<std::vector<UpdateGroup>> groups_;
  at::Tensor steps_taken_;  // fp32 scalar, exact up to 2^24 steps; read by the kernel.
  bool started_ = false;
};

}  // namespace fsdpd
