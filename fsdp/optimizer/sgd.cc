#include "fsdp/optimizer/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "base/check.h"
#include "fsdp/optimizer/sharded_params.h"

namespace fsdpd {

Sgd::Sgd(const OptimizerConfig& config, std::vector<std::vector<UpdateGroup>> groups)
    : config_(config), groups_(std::move(groups)) {}

void Sgd::Restore(int64_t) {}  // The momentum is its only state.

void Sgd::BeginStep(int64_t step) {}

void Sgd::Count(const StepScalars& scalars) {}

void Sgd::Update(int bucket, const BucketShard& shard, const StepScalars& scalars) {
  const bool has_momentum = config_.momentum > 0;
  FSDPD_CHECK(shard.moments.size() == (has_momentum ? 1 : 0));
  const at::Tensor grad = InFp32(shard.grad);
  const at::Tensor momentum = has_momentum ? InFp32(shard.moments[0]) : at::Tensor();
  for (const UpdateGroup& group : groups_[bucket]) {
    const std::vector<at::Tensor> main = RunsOf(group, shard.main);
    // Without momentum the kernel expects an empty list.
    const std::vector<at::Tensor> momenta =
        has_momentum ? RunsOf(group, momentum) : std::vector<at::Tensor>();
    const auto update = [&](const auto& learning_rate) {
      at::_fused_sgd_(main, RunsOf(group, grad), momenta, group.weight_decay, config_.momentum, learning_rate,
                      /*dampening=*/0, config_.nesterov, /*maximize=*/false, /*is_first_step=*/false,
                      scalars.grad_divisor, scalars.found_nonfinite);
    };
    const at::Tensor learning_rate = scalars.learning_rate.mul(group.lr_scale);
    // The CUDA kernel reads the rate on the device, in fp32.
    grad.is_cuda() ? update(learning_rate.to(at::kFloat)) : update(learning_rate.item<double>());
    StoreTails(group, main, shard.main);
    if (has_momentum) StoreTails(group, momenta, momentum);
  }
  if (has_momentum) WriteBack(momentum, shard.moments[0]);
}

}  // namespace fsdpd
