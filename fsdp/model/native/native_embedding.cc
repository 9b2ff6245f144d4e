#include "fsdp/model/native/native_embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>

#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/token_parts.h"

namespace fsdpd {

NativeEmbedding::NativeEmbedding(UnitFacts facts, at::ScalarType compute)
    : NativeUnit(std::move(facts), compute, /*borrowed=*/0) {}

UnitOutput NativeEmbedding::Forward(int slot, const UnitInput& input, ActivationSaving saving) {
  const at::NoGradGuard no_grad;
  if (saving != ActivationSaving::kNothing) tokens_.Put(slot, input.tokens);
  const TokenParts parts(&context());
  if (parts.ranks() == 1) return {at::embedding(param(0), input.tokens), at::Tensor()};
  const LocalVocab own = LocalVocabOf(input.tokens.flatten(), param(0).size(0), parts.rank());
  const at::Tensor rows = at::embedding(param(0), own.words).masked_fill_(own.elsewhere.unsqueeze(-1), 0);
  // At most one addend is nonzero: the sum is exact in any type.
  return {parts.Sum(rows).unsqueeze(0), at::Tensor()};
}

at::Tensor NativeEmbedding::Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                                     WeightGrads /*when*/) {
  const at::NoGradGuard no_grad;
  CheckGrads(grads);
  const at::Tensor tokens = tokens_.Take(slot).flatten(), grad = grad_out.flatten(0, 1);
  const TokenParts parts(&context());
  if (parts.ranks() == 1) {
    EmbeddingGradInto(grad, tokens, grads.accumulate, grads.into[0]);
    return at::Tensor();
  }
  const LocalVocab own = LocalVocabOf(tokens, param(0).size(0), parts.rank());
  const at::Tensor all = parts.Gather(grad).masked_fill_(own.elsewhere.unsqueeze(-1), 0);
  EmbeddingGradInto(all, own.words, grads.accumulate, grads.into[0]);
  return at::Tensor();
}

}  // namespace fsdpd
