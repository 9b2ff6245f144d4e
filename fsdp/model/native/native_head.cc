#include "fsdp/model/native/native_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "fsdp/model/native/native_linear.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/token_parts.h"

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

void LogitsInto(const at::Tensor& hidden, const HeadParams& params, at::Tensor logits) {
  LinearForwardInto(hidden, Matrices{params.weight},
                    params.bias.defined() ? Matrices{params.bias} : Matrices{}, logits);
  if (params.logit_scale != 1) logits.mul_(params.logit_scale);
  if (params.soft_cap != 0) logits.div_(params.soft_cap).tanh_().mul_(params.soft_cap);
}

// Derivative of the final logits with respect to the projection's output; undefined: 1.
at::Tensor SlopeOf(const at::Tensor& logits, const HeadParams& params) {
  if (params.soft_cap == 0) return {};
  return (logits / params.soft_cap).square_().neg_().add_(1);
}

}  // namespace

LogitsLoss WholeVocabularyLoss(const at::Tensor& logits, const at::Tensor& targets) {
  ChunkLoss all = CrossEntropyForward(logits, targets);
  return {std::move(all.loss), std::move(all.log_sum_exp), targets};
}

at::Tensor HeadLoss(const at::Tensor& hidden, const at::Tensor& targets, const HeadParams& params,
                    const LogitsLossOf& loss_of) {
  at::Tensor loss = at::zeros({}, hidden.options().dtype(at::kFloat));
  ForEachChunk(hidden.size(0), [&](int64_t begin, int64_t rows) {
    const at::Tensor logits = at::empty({rows, params.weight.size(0)}, hidden.options());
    LogitsInto(hidden.narrow(0, begin, rows), params, logits);
    loss.add_(loss_of(logits, targets.narrow(0, begin, rows)).sum);
  });
  return loss;
}

Unit::LossAndGrad HeadLossBackward(const at::Tensor& hidden, const at::Tensor& targets,
                                   const at::Tensor& grad_loss, const HeadParams& params,
                                   const HeadGrads& grads, const LogitsLossOf& loss_of) {
  const int64_t tokens = hidden.size(0);
  at::Tensor grad_hidden = at::empty_like(hidden);
  const at::Tensor logits_buffer =
      at::empty({std::min(kLossChunkTokens, tokens), params.weight.size(0)}, hidden.options());
  at::Tensor loss = at::zeros({}, hidden.options().dtype(at::kFloat));
  ForEachChunk(tokens, [&](int64_t begin, int64_t rows) {
    const at::Tensor in = hidden.narrow(0, begin, rows);
    at::Tensor logits = logits_buffer.narrow(0, 0, rows);
    LogitsInto(in, params, logits);
    const LogitsLoss chunk = loss_of(logits, targets.narrow(0, begin, rows));
    loss.add_(chunk.sum);
    const at::Tensor slope = SlopeOf(logits, params);
    CrossEntropyBackward(chunk.log_sum_exp, chunk.targets, grad_loss, &logits);
    if (slope.defined()) logits.mul_(slope);
    if (params.logit_scale != 1) logits.mul_(params.logit_scale);
    at::Tensor grad_rows = grad_hidden.narrow(0, begin, rows);
    at::mm_out(grad_rows, logits, params.weight);
    const bool accumulate = grads.accumulate || begin > 0;
    WeightGradInto(logits, in, accumulate, grads.weight);
    BiasGradInto(logits, accumulate, grads.bias);
  });
  return {loss, grad_hidden};
}

NativeHead::NativeHead(UnitFacts facts, at::ScalarType compute, double norm_epsilon)
    : NativeUnit(facts, compute, /*borrowed=*/facts.borrows < 0 ? 0 : 1), norm_epsilon_(norm_epsilon) {
  FSDPD_CHECK(facts.params.size() == (facts.borrows < 0 ? 2 : 1));
}

LogitsLoss NativeHead::LossOf(const at::Tensor& logits, const at::Tensor& targets) const {
  const TokenParts parts(&context());
  if (parts.ranks() == 1) return WholeVocabularyLoss(logits, targets);
  LocalVocab own = LocalVocabOf(targets, logits.size(1), parts.rank());
  own.words.masked_fill_(own.elsewhere, kTargetElsewhere)
      .masked_fill_(targets == kIgnoredTarget, kIgnoredTarget);
  const ChunkLoss here = CrossEntropyForward(logits, own.words);
  const at::Tensor of_ranks = at::empty({parts.ranks(), logits.size(0)}, here.log_sum_exp.options());
  of_ranks.select(0, parts.rank()).copy_(here.log_sum_exp.squeeze(-1));
  context().AllGather(Group::kTensor, of_ranks);
  at::Tensor all = at::logsumexp(of_ranks, {0}).unsqueeze(-1);
  // The contribution of other ranks' vocabulary to the loss of the targets in this rank's part.
  const at::Tensor added = (all - here.log_sum_exp).squeeze(-1).masked_fill_(own.elsewhere, 0).sum();
  return {here.loss + added, std::move(all), std::move(own.words)};
}

UnitOutput NativeHead::Forward(int /*slot*/, const UnitInput& input, ActivationSaving saving) {
  FSDPD_CHECK(saving == ActivationSaving::kNothing);
  const at::NoGradGuard no_grad;
  const at::Tensor normed =
      TokenParts(&context())
          .Gather(RmsNormForward(input.hidden.flatten(0, 1), param(kNorm), norm_epsilon_).y);
  return {at::Tensor(), HeadLoss(normed, input.targets.flatten(), {param(kOutput)},
                                 [this](const auto&... chunk) { return LossOf(chunk...); })};
}

Unit::LossAndGrad NativeHead::ForwardBackward(int /*slot*/, const UnitInput& input,
                                              const at::Tensor& grad_loss, const ParamGrads& grads) {
  const at::NoGradGuard no_grad;
  CheckGrads(grads);
  const at::Tensor x = input.hidden.flatten(0, 1);
  const TokenParts parts(&context());
  Normed normed = RmsNormForward(x, param(kNorm), norm_epsilon_);
  normed.y = parts.Gather(normed.y);
  LossAndGrad result = HeadLossBackward(normed.y, input.targets.flatten(), grad_loss, {param(kOutput)},
                                        {grads.into[kOutput], /*bias=*/{}, grads.accumulate},
                                        [this](const auto&... chunk) { return LossOf(chunk...); });
  normed.y = at::Tensor();
  result.grad_hidden = parts.Sum(result.grad_hidden);
  result.grad_hidden = RmsNormBackward(result.grad_hidden, x, normed.rstd, param(kNorm), /*residual=*/{},
                                       grads.accumulate, grads.into[kNorm])
                           .view_as(input.hidden);
  return result;
}

at::Tensor NativeHead::Backward(int /*slot*/, const at::Tensor& /*grad_out*/, const ParamGrads& /*grads*/,
                                WeightGrads /*when*/) {
  FSDPD_CHECK(false);
  return {};
}

}  // namespace fsdpd
