// Token embedding of the native models. Saves only the tokens, for every activation checkpointing mode.
//
// Tensor parallelism: each rank has the rows of a part of the vocabulary and looks up all tokens in them; the
// output is the rank's part of the tokens (token_parts.h).
#pragma once

#include "fsdp/model/native/native_unit.h"

namespace fsdpd {

class NativeEmbedding : public NativeUnit {
 public:
  NativeEmbedding(UnitFacts facts, at::ScalarType compute);

  UnitOutput Forward(int slot, const UnitInput& input, ActivationSaving saving) override;
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override {}
  void Forget() override { tokens_.Clear(); }

 private:
  SavedSlots<at::Tensor> tokens_;
};

}  // namespace fsdpd
