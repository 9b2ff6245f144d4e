#include "fsdp/model/native/native_llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>

#include <utility>

#include "fsdp/model/native/native_block.h"
#include "fsdp/model/native/native_head.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/native_unit.h"
#include "fsdp/model/native/token_parts.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

// Token embedding. Saves only the tokens, for every activation checkpointing mode.
//
// Tensor parallelism: each rank has the rows of a part of the vocabulary and looks up all tokens in them; the
// output is the rank's part of the tokens (token_parts.h).
class NativeEmbedding : public NativeUnit {
 public:
  NativeEmbedding(UnitFacts facts, at::ScalarType compute)
      : NativeUnit(std::move(facts), compute, /*borrowed=*/0) {}

  UnitOutput Forward(int slot, const UnitInput& input, ActivationSaving saving) override;
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override {}
  void Forget() override { tokens_.Clear(); }

 private:
  SavedSlots<at::Tensor> tokens_;
};

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

}  // namespace

std::vector<std::unique_ptr<Unit>> MakeNativeLlama(const LlamaConfig& config, const ModelFacts& facts,
                                                   int64_t sequence_length, at::Device device,
                                                   DType compute) {
  const Rotary rotary = MakeRotary(config, sequence_length, device);
  const at::ScalarType type = ScalarTypeOf(compute);
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitFacts& unit : facts.units) {
    switch (unit.kind) {
      case UnitKind::kEmbedding:
        units.push_back(std::make_unique<NativeEmbedding>(unit, type));
        break;
      case UnitKind::kBlock:
        units.push_back(std::make_unique<NativeBlock>(unit, type, config, rotary));
        break;
      case UnitKind::kHead:
        units.push_back(std::make_unique<NativeHead>(unit, type, config.norm_epsilon));
        break;
    }
  }
  return units;
}

}  // namespace fsdpd
