#include "fsdp/model/native/native_head.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "fsdp/model/native/native_ops.h"

namespace fsdpd {
namespace {

constexpr int kNorm = 0;
constexpr int kOutput = 1;  // Own or borrowed.

// Calls `run` with the first row and the number of rows of each chunk.
template <typename Run>
void ForEachChunk(int64_t rows, Run run) {
  for (int64_t begin = 0; begin < rows; begin += kLossChunkTokens) {
    run(begin, std::min(kLossChunkTokens, rows - begin));
  }
}

}  // namespace

NativeHead::NativeHead(UnitFacts facts, at::ScalarType compute, double norm_epsilon)
    : NativeUnit(facts, compute, /*borrowed=*/facts.borrows < 0 ? 0 : 1), norm_epsilon_(norm_epsilon) {
  FSDPD_CHECK(facts.params.size() == (facts.borrows < 0 ? 2 : 1));
}

UnitOutput NativeHead::Forward(int slot, const UnitInput& input, Keep keep) {
  const at::NoGradGuard no_grad;
  Kept kept{input.hidden.flatten(0, 1), {}, {}, input.targets};
  Normed normed = RmsNormForward(kept.x, param(kNorm), norm_epsilon_);
  if (keep == Keep::kNothing) return {at::Tensor(), Loss(normed.y, input.targets.flatten())};
  kept.normed = std::move(normed.y);
  kept.rstd = std::move(normed.rstd);
  kept_.Put(slot, std::move(kept));
  return {};
}

at::Tensor NativeHead::Loss(const at::Tensor& normed, const at::Tensor& targets) const {
  const at::Tensor output = param(kOutput).t();
  at::Tensor loss = at::zeros({}, normed.options().dtype(at::kFloat));
  ForEachChunk(normed.size(0), [&](int64_t begin, int64_t rows) {
    const at::Tensor logits = at::mm(normed.narrow(0, begin, rows), output);
    loss.add_(CrossEntropyForward(logits, targets.narrow(0, begin, rows)).loss);
  });
  return loss;
}

at::Tensor NativeHead::LossBackward(const Kept& kept, const at::Tensor& grad_loss, bool accumulate,
                                    const at::Tensor& output_grad) {
  const at::Tensor output = param(kOutput), targets = kept.targets.flatten();
  at::Tensor grad_normed = at::empty_like(kept.normed);
  at::Tensor logits_buffer =
      at::empty({std::min(kLossChunkTokens, kept.x.size(0)), output.size(0)}, kept.x.options());
  loss_ = at::zeros({}, kept.rstd.options());
  ForEachChunk(kept.x.size(0), [&](int64_t begin, int64_t rows) {
    const at::Tensor normed = kept.normed.narrow(0, begin, rows), of_rows = targets.narrow(0, begin, rows);
    at::Tensor logits = logits_buffer.narrow(0, 0, rows);
    at::mm_out(logits, normed, output.t());
    const ChunkLoss chunk = CrossEntropyForward(logits, of_rows);
    loss_.add_(chunk.loss);
    CrossEntropyBackward(chunk.log_sum_exp, of_rows, grad_loss, &logits);
    at::Tensor grad_rows = grad_normed.narrow(0, begin, rows);
    at::mm_out(grad_rows, logits, output);
    WeightGradInto(logits, normed, accumulate || begin > 0, output_grad);
  });
  return grad_normed;
}

at::Tensor NativeHead::Backward(int slot, const at::Tensor& grad_hidden, const at::Tensor& grad_loss,
                                bool accumulate, const std::vector<at::Tensor>& param_grads) {
  const at::NoGradGuard no_grad;
  CheckGrads(param_grads);
  Kept kept = kept_.Take(slot);
  const at::Tensor grad_normed = LossBackward(kept, grad_loss, accumulate, param_grads[kOutput]);
  kept.normed = at::Tensor();
  const at::Tensor grad_x = RmsNormBackward(grad_normed, kept.x, kept.rstd, param(kNorm), /*residual=*/{},
                                            accumulate, param_grads[kNorm]);
  return grad_x.unflatten(0, kept.targets.sizes());
}

}  // namespace fsdpd
