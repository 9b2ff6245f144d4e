// Grouped matrix product (grouped_product.h) of FP8 (e4m3) matrices with one scale per row (fp8.h),
// accumulated in fp32 as described in scaled_product.h and rounded once, to bf16. It uses LibTorch's grouped
// GEMM (CUTLASS) and needs compute capability 9.0. It does not synchronize and can be captured in a CUDA
// graph; its tables come from LibTorch's caching allocator.
//
// Both operands are contiguous along the dimension that is summed over: rows times an expert's matrix, or,
// for the gradient of a matrix, columns of an expert's rows, which are adjacent in the transposed operands.
//
// REQUIRES: sizes, `ends` and addresses are multiples of kFp8Step; fewer than 1024 experts. `stream` is
// LibTorch's current stream.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"

namespace fsdpd::kernels {

struct ScaledRowsArgs {
  void* x;              // [rows x inputs] FP8
  float* x_scales;      // [rows]
  void* matrix;         // [experts x outputs x inputs] FP8
  float* scales;        // [experts x outputs]
  const int32_t* ends;  // [experts]: rows past the last end are neither read nor written.
  void* y;              // [rows x outputs] bf16
  int64_t y_stride;     // Elements from one row to the next.
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
