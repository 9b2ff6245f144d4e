#include "fsdp/model/native/native_embedding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>

#include "fsdp/model/native/native_ops.h"

namespace fsdpd {

NativeEmbedding::NativeEmbedding(UnitFacts facts, at::ScalarType compute)
    : NativeUnit(std::move(facts), compute, /*borrowed=*/0) {}

UnitOutput NativeEmbedding::Forward(int slot, const UnitInput& input, Keep keep) {
  const at::NoGradGuard no_grad;
  if (keep != Keep::kNothing) tokens_.Put(slot, input.tokens);
  return {at::embedding(param(0), input.tokens), at::Tensor()};
}

at::Tensor NativeEmbedding::Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                                     WeightGrads /*when*/) {
  const at::NoGradGuard no_grad;
  CheckGrads(grads);
  const at::Tensor tokens = tokens_.Take(slot).flatten();
  EmbeddingGradInto(grad_out.flatten(0, 1), tokens, grads.accumulate, grads.into[0]);
  return at::Tensor();
}

}  // namespace fsdpd
