// 8-bit AdamW moments on the CPU (format: fsdp/kernels/fp8_moment_format.h), stored as flat tensors of bytes.
//
// Every 8-bit value has its own bf16 value, which is what checkpoints store: writing and reading back yields
// the same bytes.
//
// Thread safety: different ranges may be written concurrently. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/plan/spec/dtype.h"

namespace fsdpd {

// The tensor type in which moments of `dtype` are stored.
at::ScalarType MomentTypeOf(DType dtype);

// Converts to fp32. `moment`: 0 for exp_avg, 1 for exp_avg_sq.
at::Tensor WidenMoments(const at::Tensor& stored, int moment);

// Writes the bf16 bits to `to`, on the calling thread only, since checkpoints are written while steps run.
void WidenMomentsTo(const at::Tensor& stored, int moment, char* to);

// The largest representable value of a moment.
double LargestMoment(int moment);

// The largest magnitude of fp32 or bf16 values; NaN if any of them is.
double LargestMagnitude(const at::Tensor& numbers);

// Rounds to the nearest representable value, for moments that are read from a checkpoint.
at::Tensor NearestMoments(const at::Tensor& numbers, int moment);

// Rounds both moments of a step into `stored`, with dithering. `main` and `moments`: fp32 values after the
// step.
void StoreMoments(const std::vector<at::Tensor>& moments, const at::Tensor& main, int64_t steps_taken,
                  const std::vector<at::Tensor>& stored);

}  // namespace fsdpd
