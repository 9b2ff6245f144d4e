// Matrices in FP8 with a scale a row, and products of two: fsdp/kernels/fp8.h says how numbers are rounded,
// and why weights have scales that are powers of two. On the CPU the same numbers to the last bit, multiplied
// in fp32.
//
// REQUIRES: bf16 matrices [rows x width], of widths that 16 divides.
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

// Undefined contents.
Fp8 EmptyFp8(int64_t rows, int64_t width, const at::Tensor& on_device_of);

int64_t PaddedRows(int64_t rows);

// `by_column`: powers of two, [width], that the columns are multiplied with before; undefined: nothing.
// `ends`: on CUDA, of experts' rows (native_rows.h), beyond whose last nothing is read or written.
Fp8 Fp8Rows(const at::Tensor& x, const at::Tensor& by_column = {}, const at::Tensor& ends = {});

// Of `from`, bf16 or fp32, contiguous, [rows x width] of `into`: with scales that are powers of two.
void Fp8WeightsInto(const at::Tensor& from, const Fp8& into);
Fp8 Fp8Weights(const at::Tensor& from);

// Weights turned, [width x rows], of sizes that 16 divides: what is multiplied with it has the weights'
// scales in it (Fp8Rows' by_column), and scales here are 1.
Fp8 Fp8Turned(const Fp8& weights);

// Of x turned: [width x rows], and zeros up to PaddedRows(), the next multiple of 16. `largest`: what
// RmsNormBackward has found of it; undefined: it is found here.
Fp8 Fp8Columns(const at::Tensor& x, const at::Tensor& largest = {});

// into = addend + x weight^T, rounded once where `into` is bf16 or, by cuBLASLt, fp32. `addend`, which may be
// `into` itself, is of its type; undefined: nothing is added.
void Fp8ProductInto(const Fp8& x, const Fp8& weight, const at::Tensor& addend, at::Tensor into);

}  // namespace fsdpd
