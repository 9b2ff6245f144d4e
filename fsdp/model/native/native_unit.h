// What the native units share: parameters by number, initial values, and what a forward leaves for its
// backward.
//
// A native unit's forward and backward are written by hand on LibTorch's operators, without autograd: it
// decides what is kept, writes gradients straight into the buckets, and frees each tensor after its last use.
// The same code runs on the CPU and on CUDA; where the fastest operator differs, native_ops and
// native_attention choose.
//
// REQUIRES: parameters and hidden states are in one type, the compute type, but for selection biases that
// move, which are fp32 (ParamFacts::balances), and matrices in FP8, which have a scale a row; gradients may
// be in any.
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
  // `borrowed`: how many parameters Bind adds to the unit's own.
  NativeUnit(UnitFacts facts, at::ScalarType compute, int borrowed);

  const UnitFacts& facts() const { return facts_; }

  // The own parameter with this name; -1 where the configuration has none.
  int IndexOf(const std::string& name) const;

  UnitContext& context() const { return *context_; }

  // The bound parameter; undefined for -1. Of one in FP8 its values, and its scales.
  at::Tensor param(int index) const;
  at::Tensor scales(int index) const { return scales_.at(index); }

  // REQUIRES: Bind was called, and there is a gradient, or an undefined tensor, for each of its parameters.
  void CheckGrads(const ParamGrads& grads) const;

 private:
  const UnitFacts facts_;
  const at::ScalarType compute_;
  const size_t borrowed_;
  std::vector<at::Tensor> params_;
  std::vector<at::Tensor> scales_;  // Undefined but of those in FP8.
  UnitContext* context_ = nullptr;
};

// What forwards left for their backwards, by slot.
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
