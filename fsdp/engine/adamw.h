// AdamW on flat shards, by PyTorch's fused kernel: one pass over parameters, moments and gradient. A unit's
// shard is cut into runs of parameters that decay and runs that do not, so a unit takes at most two kernels.
//
// Step number, gradient scale and moments stay on the device; nothing is read back. Everything runs on the
// caller's current stream. LibTorch's exceptions pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "fsdp/engine/sharded_params.h"
#include "fsdp/plan/spec.h"

namespace fsdpd {

// Elements [begin, begin + elements) of a shard, all of which decay or none of which does. Padding, whose
// values and gradients are zero, may be in either.
struct DecayRun {
  int64_t begin = 0;
  int64_t elements = 0;
  bool decay = true;
};

// In order, without gaps; empty for a shard that holds padding only.
std::vector<DecayRun> DecayRuns(const UnitLayout& unit, int64_t shard);

class AdamW {
 public:
  AdamW(const AdamWConfig& config, const Layout& layout, int64_t shard, at::Device device);

  // Before a step's first Update. `step` counts from 1.
  void BeginStep(int64_t step, double learning_rate);

  // `grad_divisor`: a scalar fp32 tensor on the device by which the gradient is divided first (clipping), or
  // undefined for no division. The gradient's values are undefined afterwards.
  void Update(int unit, const UnitShard& shard, const at::Tensor& grad_divisor) const;

 private:
  const AdamWConfig config_;
  std::vector<std::vector<DecayRun>> runs_;  // By unit.
  at::Tensor step_;                          // Scalar fp32.
  double learning_rate_ = 0;
};

}  // namespace fsdpd
