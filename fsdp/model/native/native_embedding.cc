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

at::Tensor NativeEmbedding::Backward(int slot, const at::Tensor& grad_hidden, const at::Tensor& grad_loss,
                                     bool accumulate, const std::vector<at::Tensor>& param_grads) {
  const at::NoGradGuard no_grad;
  CheckGrads(param_grads);
  const at::Tensor tokens = tokens_.Take(slot).flatten();
  EmbeddingGradInto(grad_hidden.flatten(0, 1), tokens, accumulate, param_grads[0]);
  return at::Tensor();
}

}  // namespace fsdpd
