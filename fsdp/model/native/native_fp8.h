// Matrices in FP8 with a scale a row, and products of two: fsdp/kernels/fp8.h says how numbers are rounded.
// On the CPU the same numbers to the last bit, multiplied in fp32.
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

Fp8 Fp8Rows(const at::Tensor& x);

// Of x turned: [width x rows], and zeros up to PaddedRows(), the next multiple of 16.
Fp8 Fp8Columns(const at::Tensor& x);

// into = addend + x weight^T, rounded once where `into` is bf16 or, by cuBLASLt, fp32. `addend`, which may be
// `into` itself, is of its type; undefined: nothing is added.
void Fp8ProductInto(const Fp8& x, const Fp8& weight, const at::Tensor& addend, at::Tensor into);

}  // namespace fsdpd
