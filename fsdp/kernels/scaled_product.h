// result = (x scaled)(weight scaled)^T, and an addend to it, of matrices in FP8 (e4m3) with a scale a row
// (fp8.h): added up in fp32, and rounded once. By cuBLASLt, on cards of compute capability 9.0.
//
// Hopper adds FP8 products up in fewer bits than fp32 has, and with fast accumulation, as here, never moves
// such sums to full ones: what that changes is a hundredth of what rounding to FP8 does
// (docs/bench/2026-11-24-fp8-products-alone.md), and it is a twelfth faster.
//
// Which of cuBLASLt's algorithms serves a shape is its heuristic's choice, asked once a thread and shape.
// Memory: LibTorch's workspace of the stream.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct ScaledProductArgs {
  const void* x;  // [rows x inputs] FP8
  const float* x_scales;
  const void* weight;  // [outputs x inputs] FP8
  const float* weight_scales;
  const void* addend;  // As result, or null: nothing is added. May be the result's place.
  void* result;        // [rows x outputs], rows `stride` numbers apart.
  int64_t rows;
  int64_t outputs;
  int64_t inputs;
  int64_t stride;
  DType type;  // Of result.
};

// False, and nothing is done, where cuBLASLt has no algorithm for it.
bool ScaledProduct(const ScaledProductArgs& args, Stream stream);

}  // namespace fsdpd::kernels
