// Expert FFN in FP8 (native_experts.h): for each expert the matmul of native_linear, with the same bits on
// the CPU. On CUDA one grouped matmul without synchronization.
//
// REQUIRES: widths are multiples of 16; on CUDA, so are the row ends of each expert (native_rows.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "fsdp/model/native/native_fp8.h"

namespace fsdpd {

// Rows, either materialized or, with `places`, as indices of the tokens that GatherRows would copy
// (native_rows.h).
struct ExpertRows {
  ExpertRows(at::Tensor rows) : from(std::move(rows)) {}  // NOLINT: implicit by design.
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

// The complete gradient of the rows.
at::Tensor Fp8ExpertsBackward(const ExpertRows& grad_out, const at::Tensor& ends,
                              const std::vector<Fp8>& matrices);

void Fp8ExpertsGradsInto(const ExpertRows& grad_out, const ExpertRows& rows, const at::Tensor& ends,
                         int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into);

}  // namespace fsdpd
