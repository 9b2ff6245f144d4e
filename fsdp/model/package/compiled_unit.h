// A unit that was exported from PyTorch: its forward and backward are compiled calls (compiled_call.h), and
// the manifest of its package says which tensors each call takes and returns (package.proto).
//
// The last unit's calls end before the output projection, which it computes together with the loss
// (native_head.h). Parameters are inputs of calls and are never saved: backward reads the gathered bucket
// again. Saved activations are tensors that forward returned.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/model/native/native_head.h"
#include "fsdp/model/native/native_unit.h"
#include "fsdp/model/package/compiled_call.h"
#include "fsdp/model/package/package_values.h"
#include "proto/fsdpd/v1/package.pb.h"

namespace fsdpd {

// A call and the meaning of its arguments and results.
struct UnitCall {
  std::vector<v1::PackageValue> inputs;
  std::vector<v1::PackageValue> outputs;
  std::shared_ptr<CompiledCall> compiled;

  explicit operator bool() const { return compiled != nullptr; }
};

// The calls of a graph, shared by all units that compute it.
struct UnitCalls {
  struct Variant {
    UnitCall forward;   // Empty: `evaluation`, which saves only the unit's input.
    UnitCall backward;  // Empty: the first unit, with all its parameters frozen.
  };

  UnitCall evaluation;
  std::map<ActivationSaving, Variant> variants;
};

class CompiledUnit : public Unit {
 public:
  // `buffers`: in the order of the unit's manifest, on the device. `head`: of the last unit. REQUIRES: the
  // variants that the plan chooses from are in `calls`, and indices of its values are valid.
  CompiledUnit(UnitFacts facts, std::shared_ptr<const UnitCalls> calls, std::vector<at::Tensor> buffers,
               std::vector<PackageValues> initial, std::optional<v1::Package::Head> head);

  void Bind(const std::vector<BoundParam>& params, UnitContext* context) override;
  UnitOutput Forward(int slot, const UnitInput& input, ActivationSaving saving) override;
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  LossAndGrad ForwardBackward(int slot, const UnitInput& input, const at::Tensor& grad_loss,
                              const ParamGrads& grads) override;
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override;
  bool Recordable() const override { return true; }  // Exporters refuse decisions that depend on values.
  void Forget() override { slots_.Clear(); }
  at::Tensor InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const override;
  std::optional<kernels::NormalNumbers> InitialNumbers(int index, uint64_t seed) const override;

 private:
  struct Saved {
    UnitInput input;
    const UnitCall* backward = nullptr;
    std::vector<at::Tensor> tensors;
  };

  // Runs a forward; returns the hidden states, and puts what it saved into `saved`.
  at::Tensor RunForward(const UnitCall& call, const UnitInput& input, std::vector<at::Tensor>* saved) const;
  // Runs the backward; writes the gradients of parameters. Marks those in `written`.
  at::Tensor RunBackward(Saved saved, const at::Tensor& grad_out, const ParamGrads& grads,
                         std::vector<bool>* written) const;
  at::Tensor InputOf(const v1::PackageValue& value, const UnitInput& input, std::vector<at::Tensor>* saved,
                     const at::Tensor& grad_out) const;
  HeadParams OutputProjection() const;
  uint64_t NameHash(int index, uint64_t seed) const;

  const UnitFacts facts_;
  const std::shared_ptr<const UnitCalls> calls_;
  const std::vector<at::Tensor> buffers_;
  const std::vector<PackageValues> initial_;
  const std::optional<v1::Package::Head> head_;
  std::vector<at::Tensor> params_;
  SavedSlots<Saved> slots_;
};

}  // namespace fsdpd
