// Products of many experts' matrices in FP8, each with its own rows (native_experts.h): of each expert
// native_linear's, and its numbers to the bit on the CPU. On CUDA all of them at once, without waiting.
//
// REQUIRES: widths that 16 divides, and on CUDA ends as well.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/model/native/native_fp8.h"

namespace fsdpd {

// `matrices`: numbers [experts x outputs x inputs] and scales [experts x outputs].
at::Tensor Fp8ExpertsForward(const Fp8& rows, const at::Tensor& ends, const std::vector<Fp8>& matrices);

// All of the rows' gradient.
at::Tensor Fp8ExpertsBackward(const at::Tensor& grad_out, const at::Tensor& ends,
                              const std::vector<Fp8>& matrices);

void Fp8ExpertsGradsInto(const at::Tensor& grad_out, const at::Tensor& rows, const at::Tensor& ends,
                         int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into);

}  // namespace fsdpd
