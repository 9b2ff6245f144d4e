// Product of FP8 (e4m3) matrices with one scale per row (fp8.h): result = dequantize(x) dequantize(weight)^T
// + addend, accumulated in fp32 and rounded once. Uses cuBLASLt and needs compute capability 9.0.
//
// Hopper accumulates FP8 products with fewer bits than fp32 has. With fast accumulation, used here, it never
// promotes partial sums to full fp32. The error of that is 1% of the FP8 rounding error
// (docs/bench/2026-11-24-fp8-products-alone.md), and it is 8% faster.
//
// The cuBLASLt algorithm is looked up once per thread and shape, see lt_product.h. Memory: LibTorch's
// cuBLASLt workspace of the stream.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct ScaledProductArgs {
  const void* x;  // [rows x inputs] FP8
  const float* x_scales;
  const void* weight;  // [outputs x inputs] FP8
  const float* weight_scales;
  const void* addend;  // Like result, may alias it. Null: nothing is added.
  void* result;        // [rows x outputs], rows `stride` elements apart.
  int64_t rows;
  int64_t outputs;
  int64_t inputs;
  int64_t stride;
  DType type;  // Type of result and addend.
};

// Returns false, without doing anything, if cuBLASLt has no algorithm for the shape.
bool ScaledProduct(const ScaledProductArgs& args, Stream stream);

}  // namespace fsdpd::kernels
