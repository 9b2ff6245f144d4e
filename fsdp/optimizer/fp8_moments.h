// AdamW's moments where they have eight bits (fsdp/kernels/fp8_moments.h): flat tensors of bytes, on the CPU.
//
// All of them can be told apart in bf16, which is what checkpoints keep: what is stored, written so and read
// back is the same bytes.
//
// Thread safety: different ranges may be written at once. LibTorch's exceptions pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/plan/spec/dtype.h"

namespace fsdpd {

// The tensors' type in which moments of `dtype` are stored.
at::ScalarType MomentTypeOf(DType dtype);

// `moment`: 0 or 1, the first or the second. In fp32.
at::Tensor WidenMoments(const at::Tensor& stored, int moment);

// As bf16, whose bits go to `to`, on this thread alone: checkpoints are written beside steps.
void WidenMomentsTo(const at::Tensor& stored, int moment, char* to);

// Of that moment, the largest number there is.
double LargestMoment(int moment);

// The largest magnitude of numbers in fp32 or bf16; NaN if any is.
double LargestMagnitude(const at::Tensor& numbers);

// The nearest: for numbers that are read.
at::Tensor NearestMoments(const at::Tensor& numbers, int moment);

// What a step made of both moments into `stored`, dithered. `main` and `moments`: fp32, after the step.
void StoreMoments(const std::vector<at::Tensor>& moments, const at::Tensor& main, int64_t steps_taken,
                  const std::vector<at::Tensor>& stored);

}  // namespace fsdpd
