// Common base of native units: parameters by index, initial values, and the saved activations of each slot.
//
// Native units implement forward and backward explicitly on LibTorch's operators, without autograd: they
// decide what is saved, write gradients directly into the buckets, and free each tensor after its last use.
// The same code runs on CPU and CUDA; where the fastest operator differs, native_ops and native_attention
// choose.
//
// REQUIRES: parameters and hidden states have one type, the compute type, except for selection biases that
// are updated by load balancing, which are fp32 (ParamFacts::balances), and FP8 matrices, which have one
// scale per row. Gradients may have any type.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fsdp/model/unit/unit.h"

namespace fsdpd {

class NativeUnit : public Unit {
 public:
  void Bind(const std::vector<BoundParam>& params, UnitContext* context) final;
  at::Tensor InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const final;
  std::optional<kernels::NormalNumbers> InitialNumbers(int index, uint64_t seed) const final;
  bool Recordable() const override { return true; }

 protected:
  // `borrowed`: the number of parameters in Bind that follow the unit's own.
  NativeUnit(UnitFacts facts, at::ScalarType compute, int borrowed);

  const UnitFacts& facts() const { return facts_; }

  // Index of the unit's own parameter with this name; -1 if the configuration does not have it.
  int IndexOf(const std::string& name) const;

  UnitContext& context() const { return *context_; }

  // The bound parameter; undefined for -1. For FP8 parameters, the values; scales() has their scales.
  at::Tensor param(int index) const;
  at::Tensor scales(int index) const { return scales_.at(index); }

  // REQUIRES: Bind was called, and `grads` has a tensor (possibly undefined) for each of its parameters.
  void CheckGrads(const ParamGrads& grads) const;

 private:
  const UnitFacts facts_;
  const at::ScalarType compute_;
  const size_t borrowed_;
  std::vector<at::Tensor> params_;
  std::vector<at::Tensor> scales_;  // Undefined except for FP8 parameters.
  UnitContext* context_ = nullptr;
};

// Saved activations by slot, between a forward and its backward.
template <typename Saved>
class SavedSlots {
 public:
  void Put(int slot, Saved saved) {
    const bool is_new = slots_.emplace(slot, std::move(saved)).second;
    FSDPD_CHECK(is_new);
  }

  Saved* Find(int slot) {
    const auto found = slots_.find(slot);
    FSDPD_CHECK(found != slots_.end());
    return &found->second;
  }

  Saved Take(int slot) {
    const auto found = slots_.find(slot);
    FSDPD_CHECK(found != slots_.end());
    Saved saved = std::move(found->second);
    slots_.erase(found);
    return saved;
  }

  void Clear() { slots_.clear(); }

 private:
  std::map<int, Saved> slots_;
};

}  // namespace fsdpd
