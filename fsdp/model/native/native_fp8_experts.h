// Products of many experts' matrices in FP8, each with its own rows (native_experts.h): of each expert
// native_linear's, and its numbers to the bit on the CPU. On CUDA all of them at once, without waiting.
//
// REQUIRES: widths that 16 divides, and on CUDA ends as well.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "fsdp/model/native/native_fp8.h"

namespace fsdpd {

// Rows as they are, or with `places` those of tokens that GatherRows would copy (native_rows.h).
struct ExpertRows {
  ExpertRows(at::Tensor rows) : from(std::move(rows)) {}  // NOLINT: stands for them.
  ExpertRows(at::Tensor tokens, at::Tensor of, int64_t per_token)
      : from(std::move(tokens)), places(std::move(of)), divisor(per_token) {}

  int64_t rows() const { return places.defined() ? places.size(0) : from.size(0); }
  int64_t width() const { return from.size(1); }

  at::Tensor from;
  at::Tensor places;
  int64_t divisor = 1;
};

// `matrices`: numbers [experts x outputs x inputs] and scales [experts x outputs].
at::Tensor Fp8ExpertsForward(const Fp8& rows, const at::Tensor& ends, const std::vector<Fp8>& matrices);

// All of the rows' gradient.
at::Tensor Fp8ExpertsBackward(const ExpertRows& grad_out, const at::Tensor& ends,
                              const std::vector<Fp8>& matrices);

void Fp8ExpertsGradsInto(const ExpertRows& grad_out, const ExpertRows& rows, const at::Tensor& ends,
                         int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into);

}  // namespace fsdpd
