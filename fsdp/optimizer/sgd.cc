#include "fsdp/optimizer/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "base/check.h"
#include "fsdp/optimizer/sharded_params.h"

namespace fsdpd {

Sgd::Sgd(const OptimizerConfig& config, std::vector<std::vector<UpdateGroup>> groups)
    : config_(config), groups_(std::move(groups)) {}

void Sgd::BeginStep(int64_t step, double learning_rate) { learning_rate_ = learning_rate; }

void Sgd::Update(int bucket, const BucketShard& shard, const at::Tensor& grad_divisor,
                 const at::Tensor& found_nonfinite) {
  const bool has_momentum = config_.momentum > 0;
  FSDPD_CHECK(shard.moments.size() == (has_momentum ? 1 : 0));
  const at::Tensor grad = InFp32(shard.grad);
  const at::Tensor momentum = has_momentum ? InFp32(shard.moments[0]) : at::Tensor();
  for (const UpdateGroup& group : groups_[bucket]) {
    const std::vector<at::Tensor> main = RunsOf(group, shard.main);
    // Without momentum the kernel wants no list at all.
    const std::vector<at::Tensor> momenta =
        has_momentum ? RunsOf(group, momentum) : std::vector<at::Tensor>();
    at::_fused_sgd_(main, RunsOf(group, grad), momenta, group.weight_decay, config_.momentum,
                    learning_rate_ * group.lr_scale, /*dampening=*/0, config_.nesterov,
                    /*maximize=*/false, /*is_first_step=*/false, grad_divisor, found_nonfinite);
    StoreTails(group, main, shard.main);
    if (has_momentum) StoreTails(group, momenta, momentum);
  }
  if (has_momentum) StoreBack(momentum, shard.moments[0]);
}

}  // namespace fsdpd
