#include "fsdp/optimizer/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "fsdp/kernels/adamw_kernel.h"
#include "fsdp/optimizer/fp8_moments.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

bool HasFp8Moments(const BucketShard& shard) { return shard.moments[0].scalar_type() == at::kByte; }

at::Tensor MomentInFp32(const BucketShard& shard, int moment) {
  return HasFp8Moments(shard) ? WidenMoments(shard.moments[moment], moment) : InFp32(shard.moments[moment]);
}

}  // namespace

AdamW::AdamW(const OptimizerConfig& config, std::vector<std::vector<UpdateGroup>> groups, at::Device device)
    : config_(config),
      groups_(std::move(groups)),
      steps_taken_(at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device))) {}

void AdamW::Restore(int64_t steps_taken) {
  steps_taken_.fill_(steps_taken);
  started_ = true;
}

void AdamW::BeginStep(int64_t step) {
  if (started_) return;
  steps_taken_.fill_(step - 1);
  started_ = true;
}

// Only the device knows whether the step is skipped.
void AdamW::Count(const StepScalars& scalars) { steps_taken_.add_(1).sub_(scalars.found_nonfinite); }

void AdamW::Update(int bucket, const BucketShard& shard, const StepScalars& scalars) {
  FSDPD_CHECK(started_ && shard.moments.size() == 2);
  if (shard.grad.is_cuda()) return UpdateOnCuda(bucket, shard, scalars);
  const double learning_rate = scalars.learning_rate.item<double>();
  const at::Tensor grad = InFp32(shard.grad);
  const at::Tensor exp_avg = MomentInFp32(shard, 0), exp_avg_sq = MomentInFp32(shard, 1);
  for (const UpdateGroup& group : groups_[bucket]) {
    const std::vector<at::Tensor> main = RunsOf(group, shard.main);
    const std::vector<at::Tensor> first = RunsOf(group, exp_avg);
    const std::vector<at::Tensor> second = RunsOf(group, exp_avg_sq);
    const std::vector<at::Tensor> steps(main.size(), steps_taken_);
    at::_fused_adamw_(main, RunsOf(group, grad), first, second, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate * group.lr_scale, config_.beta1, config_.beta2, group.weight_decay,
                      config_.eps, /*amsgrad=*/false, /*maximize=*/false, scalars.grad_divisor,
                      scalars.found_nonfinite);
    StoreTails(group, main, shard.main);
    StoreTails(group, first, exp_avg);
    StoreTails(group, second, exp_avg_sq);
  }
  if (!HasFp8Moments(shard)) {
    WriteBack(exp_avg, shard.moments[0]);
    WriteBack(exp_avg_sq, shard.moments[1]);
    return;
  }
  const auto steps_taken = static_cast<int64_t>(steps_taken_.item<float>());
  StoreMoments({exp_avg, exp_avg_sq}, shard.main, steps_taken, shard.moments);
}

// Uses our own kernel, one launch per run: LibTorch's reaches 2.5 of 4.3 TB/s on an H200.
void AdamW::UpdateOnCuda(int bucket, const BucketShard& shard, const StepScalars& scalars) const {
  // Null if the tensor does not exist.
  const auto at = [](const at::Tensor& flat, int64_t element) {
    return flat.defined() ? static_cast<char*>(flat.data_ptr()) + element * flat.element_size() : nullptr;
  };
  kernels::AdamWArgs args = {};
  args.learning_rate = scalars.learning_rate.const_data_ptr<double>();
  args.grad_divisor = scalars.grad_divisor.const_data_ptr<float>();
  args.skip = scalars.found_nonfinite.const_data_ptr<float>();
  args.steps_taken = steps_taken_.const_data_ptr<float>();
  args.beta1 = config_.beta1;
  args.beta2 = config_.beta2;
  args.eps = config_.eps;
  args.grad_type = DTypeOf(shard.grad.scalar_type());
  args.moment_type = HasFp8Moments(shard) ? DType::kFp8 : DTypeOf(shard.moments[0].scalar_type());
  for (const UpdateGroup& group : groups_[bucket]) {
    args.lr_scale = group.lr_scale;
    args.weight_decay = group.weight_decay;
    for (const BucketRange& run : group.runs) {
      args.param = reinterpret_cast<float*>(at(shard.main, run.begin));
      args.high = reinterpret_cast<uint16_t*>(at(shard.split.high, run.begin));
      args.low = reinterpret_cast<uint16_t*>(at(shard.split.low, run.begin));
      args.grad = at(shard.grad, run.begin);
      args.exp_avg = at(shard.moments[0], run.begin);
      args.exp_avg_sq = at(shard.moments[1], run.begin);
      args.elements = run.elements;
      kernels::AdamWUpdate(args, kernels::CurrentStream(shard.grad.get_device()));
    }
  }
}

}  // namespace fsdpd
