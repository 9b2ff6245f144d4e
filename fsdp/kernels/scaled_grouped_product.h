// grouped_product.h of matrices in FP8 (e4m3) with a scale a row (fp8.h): added up in fp32 as
// scaled_product.h has it, and rounded once, to bf16. By LibTorch's grouped product, which is CUTLASS's, on
// cards of compute capability 9.0. It waits for nothing and can be recorded; its tables come from LibTorch's
// allocator.
//
// Both operands have in a row what is added up: rows by an expert's matrix, or, for the gradient of one, the
// columns of an expert's rows, which lie beside each other in what is turned.
//
// REQUIRES: sizes and `ends` are multiples of kFp8Step, addresses too, and experts below 1024. `stream` is
// LibTorch's current one.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"

namespace fsdpd::kernels {

struct ScaledRowsArgs {
  void* x;              // [rows x inputs] FP8
  float* x_scales;      // [rows]
  void* matrix;         // [experts x outputs x inputs] FP8
  float* scales;        // [experts x outputs]
  const int32_t* ends;  // [experts]: rows beyond the last are neither read nor written.
  void* y;              // [rows x outputs] bf16
  int64_t y_stride;     // From row to row, in numbers.
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
  int experts;
};
void ScaledGroupedRows(const ScaledRowsArgs& args, Stream stream);

struct ScaledGradsArgs {
  void* y;          // [outputs x rows] FP8
  float* y_scales;  // [experts x outputs]
  void* x;          // [inputs x rows] FP8
  float* x_scales;  // [experts x inputs]
  const int32_t* ends;
  void* matrix;  // [experts x outputs x inputs] bf16
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
  int experts;
};
void ScaledGroupedGrads(const ScaledGradsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
