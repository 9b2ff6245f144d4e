// RMSNorm: rstd = 1 / sqrt(mean(x^2) + epsilon), y = x * rstd * weight, in fp32, rounded once. The backward
// is fused with the gradient addition of a residual block:
//
//   unit = x * rstd,  g = grad_y * weight,  grad_x = rstd * (g - unit * mean(g * unit)) + residual
//
// The gradient of the weight is the sum of grad_y * unit over rows, first into kRmsNormBlocks partial sums
// and then over those, both in an order that depends only on shapes.
//
// Minimum memory traffic for m = rows x width elements of c bytes: forward 2 m c, backward 4 m c (reads x,
// grad_y and residual, writes grad_x), 5 m c if y is recomputed, plus the partial sums twice (4 MB at width
// 4096).
#pragma once

#include <cstdint>
#include <initializer_list>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/kernels/fp8.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// The backward's grid size, and the number of rows of `parts`. A constant rather than the device's
// multiprocessor count, so that the order of sums is the same on all devices.
constexpr int64_t kRmsNormBlocks = 264;

// Whether the kernels support rows of this shape at these addresses (null addresses are ignored): whole
// 16-byte packs, few enough for the registers of a block.
bool TakesRmsNorm(int64_t width, DType type, std::initializer_list<const void*> addresses);

// Whether they can also quantize bf16 rows of this shape to FP8 (fp8.h): only rows wide enough for a whole
// block.
bool TakesFp8RmsNorm(int64_t width, std::initializer_list<const void*> addresses);

struct RmsNormArgs {
  const void* x;       // [rows x width], like y.
  const void* weight;  // [width]
  void* y;
  float* rstd;  // [rows]
  int64_t rows;
  int64_t width;
  double epsilon;
  DType type;
  float* scales = nullptr;        // [rows]. If set: y is then quantized to FP8 with a scale per row.
  Fp8Statistics* seen = nullptr;  // FP8 statistics, see fp8.h; only with scales.
};

// REQUIRES: TakesRmsNorm(), for the backward too. With scales: TakesFp8RmsNorm() and bf16.
void RmsNormForward(const RmsNormArgs& args, Stream stream);

struct RmsNormBackwardArgs {
  const void* grad_y;  // [rows x width], like x, residual and grad_x.
  const void* x;
  const float* rstd;     // [rows]
  const void* weight;    // [width]
  const void* residual;  // Null: nothing is added to grad_x.
  void* grad_x;
  void* y;            // Recomputed forward output, bit for bit; may alias grad_y. Null: not needed.
  float* parts;       // [kRmsNormBlocks x width]: scratch. Null: the weight is frozen.
  void* weight_grad;  // [width] of type `grad`.
  bool accumulate;    // Add to weight_grad instead of overwriting it.
  int64_t rows;
  int64_t width;
  DType type;
  DType grad;
  uint32_t* largest = nullptr;  // [width]. If set, with y: the column maxima of |y| (fp8.h).
};

// REQUIRES, with `largest`: TakesFp8RmsNorm() and bf16.
void RmsNormBackward(const RmsNormBackwardArgs& args, Stream stream);

}  // namespace fsdpd::kernels
