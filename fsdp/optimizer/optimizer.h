// Optimizer: updates the main parameters of a rank. adamw.h and sgd.h implement the interface with fused
// kernels; make_optimizer.h chooses between them.
//
// The main shard of a bucket is divided into groups of parameters with the same weight decay and
// learning-rate factor (update_groups.h). Each group is one call of a fused kernel: one pass over parameters,
// moments and gradient. Values that change per step are read from scalars at fixed addresses on the device
// (StepScalars), and step counters advance on the device: so an update that was captured into a CUDA graph is
// correct for every step, and nothing synchronizes with the host.
//
// The new value of an element depends only on its own old values, bit for bit. So results do not depend on
// how parameters are split into shards and groups, or on the number of ranks (update_groups.h explains what
// this takes on CPU).
//
// Call order: Restore if the moments are not zero, once; then per step BeginStep, Count once it is known
// whether the step is skipped, and Update for each trainable bucket, in any order. Everything runs on the
// caller's current stream. Ownership: parameters, moments and gradient remain the caller's. Thread safety:
// none. Errors: exceptions of LibTorch pass through.
//
// Memory cost of narrow types, except for AdamW on CUDA: moments and gradients in bf16 are converted to fp32
// for the duration of one Update, which takes 4 bytes per element of the shard and converted tensor, and two
// more passes (one for a gradient, which is not written back). A new bf16 moment is rounded to nearest; 8-bit
// moments are rounded as fsdp/kernels/fp8_moment_format.h describes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdpd {

struct BucketShard;

// Inputs of a step, on the device of its shards. Each is the same tensor in all steps.
struct StepScalars {
  at::Tensor learning_rate;  // fp64, as computed by the schedule; multiplied by a group's factor.
  at::Tensor grad_divisor;   // fp32: clipping, loss scale, ignored targets.
  // fp32: exactly 0 or 1, as kernels compare with 1; the same for all updates of a step.
  at::Tensor found_nonfinite;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Before the first step of a resumed run. `steps_taken`: number of updates, without skipped ones.
  virtual void Restore(int64_t steps_taken) = 0;

  // Before a step's Count; updates of the previous step may still be running. `step` counts from 1 and
  // increases; it includes steps that the device skipped.
  virtual void BeginStep(int64_t step) = 0;

  // Before a step's first Update, after all updates of the previous step.
  virtual void Count(const StepScalars& scalars) = 0;

  // Divides the gradient by the divisor and applies it. If `found_nonfinite` is 1, parameters, moments and
  // the optimizer's state stay bit-identical. The gradient is undefined afterwards. REQUIRES:
  //   1. shard.main, moments and grad have the bucket's main_elements each; main is fp32, or split fp32 (only
  //   for AdamW on CUDA);
  //   2. there are OptimizerConfig::moments() moments, zero before the first step.
  virtual void Update(int bucket, const BucketShard& shard, const StepScalars& scalars) = 0;
};

}  // namespace fsdpd
