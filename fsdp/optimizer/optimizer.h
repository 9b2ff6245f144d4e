// How a rank updates its main parameters: one interface, and a fused kernel for each rule (adamw.h, sgd.h);
// make_optimizer.h chooses.
//
// A bucket's main piece is cut into runs of parameters with equal decay and rate (update_groups.h), and every
// distinct pair of the two is one call of a fused kernel: one pass over parameters, moments and gradient.
// What changes from step to step is read from scalars at fixed places on the device (StepScalars), and the
// state that counts steps advances there: an update that was captured once is right for every step. Nothing
// is read back and nothing waits.
//
// An element's new value depends on its own old values alone, to the last bit: any cut of the parameters into
// pieces and runs, and so any number of ranks, gives the same (update_groups.h says what that takes on CPU).
//
// Call order: Restore where moments are not zero, once; then BeginStep, Count once it is known whether the
// step is skipped, and then Update once for each trainable bucket, in any order: all runs on the caller's
// current stream. Ownership: main, moments and gradient stay the caller's. Thread safety: none. Errors:
// LibTorch's exceptions pass through.
//
// Cost of narrow types, but for AdamW on CUDA: moments or gradients in bf16 are widened into fp32 tensors for
// the time of one Update, 4 bytes for each element of the bucket's main piece and widened tensor, at two more
// passes over each (one for a gradient, which is not written back). A moment's new value is rounded to the
// nearest bf16; one of eight bits as fsdp/kernels/fp8_moments.h says.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdpd {

struct BucketShard;

// Of a step, on the device of its shards. Each stays the same tensor over all steps.
struct StepScalars {
  at::Tensor learning_rate;  // fp64, as the schedule computes it; a group's factor comes on top.
  at::Tensor grad_divisor;   // fp32: clipping, loss scale, targets that do not count.
  at::Tensor
      found_nonfinite;  // fp32: exactly 0 or 1 (kernels compare with 1); the same in all of a step's updates.
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Before the first step of a run that goes on: how many updates there were, skipped ones left out.
  virtual void Restore(int64_t steps_taken) = 0;

  // Before a step's Count; updates of the step before may still run beside it. `step` counts from 1 and
  // rises; steps that the device skipped count too.
  virtual void BeginStep(int64_t step) = 0;

  // Before a step's first Update, and when the updates of the step before have ended.
  virtual void Count(const StepScalars& scalars) = 0;

  // Takes the gradient divided by the divisor. Where `found_nonfinite` is 1, main parameters, moments and the
  // optimizer's own state keep every bit. The gradient's values are undefined afterwards. REQUIRES:
  //   1. shard.main, moments and grad have the bucket's main_elements each; main is fp32, or in halves, which
  //      AdamW on CUDA takes and nobody else;
  //   2. there are as many moments as OptimizerConfig::moments(), zero before the first step.
  virtual void Update(int bucket, const BucketShard& shard, const StepScalars& scalars) = 0;
};

}  // namespace fsdpd
