// FP8 matrices with one scale per row, and their products. fsdp/kernels/fp8.h defines the rounding and
// explains why weights have power-of-two scales. The CPU implementation produces the same FP8 bits and
// multiplies in fp32.
//
// REQUIRES: bf16 matrices [rows x width], with widths that are multiples of 16.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdpd {

struct Fp8 {
  at::Tensor values;  // [rows x width], e4m3.
  at::Tensor scales;  // [rows] fp32.

  // Rows [begin, begin + rows).
  Fp8 Part(int64_t begin, int64_t rows) const;

  bool defined() const { return values.defined(); }
};

// Uninitialized.
Fp8 EmptyFp8(int64_t rows, int64_t width, const at::Tensor& on_device_of);

int64_t PaddedRows(int64_t rows);

// `by_column`: [width] powers of two that multiply the columns before quantization; undefined: none. `ends`:
// for rows of experts (native_rows.h), CUDA only; rows past the last end are neither read nor written.
Fp8 Fp8Rows(const at::Tensor& x, const at::Tensor& by_column = {}, const at::Tensor& ends = {});

// Quantizes `from` (bf16 or fp32, contiguous, [rows x width] of `into`) with power-of-two scales.
void Fp8WeightsInto(const at::Tensor& from, const Fp8& into);
Fp8 Fp8Weights(const at::Tensor& from);

// Transposed weights, [width x rows], for sizes that are multiples of 16. The scales of the result are 1; the
// other operand of the product must contain the weights' scales (Fp8Rows' by_column).
Fp8 Fp8Transposed(const Fp8& weights);

// Quantizes x transposed: [width x PaddedRows()], zero past x's rows; PaddedRows() rounds up to a multiple of
// 16. `largest`: column maxima from RmsNormBackward; undefined: computed here.
Fp8 Fp8Columns(const at::Tensor& x, const at::Tensor& largest = {});

// into = addend + x weight^T, rounded once if `into` is bf16 (or, with cuBLASLt, fp32). `addend` has the type
// of `into` and may alias it; undefined: nothing is added.
void Fp8ProductInto(const Fp8& x, const Fp8& weight, const at::Tensor& addend, at::Tensor into);

}  // namespace fsdpd
