// RMSNorm: rstd = 1 / sqrt(mean(x^2) + epsilon), y = x * rstd * weight, in fp32 and rounded once. And its
// backward, with the sum that follows it in a residual block:
//
//   unit = x * rstd,  g = grad_y * weight,  grad_x = rstd * (g - unit * mean(g * unit)) + residual
//
// and the weight's gradient, the sum over rows of grad_y * unit, first in kRmsNormBlocks parts and then over
// those, both in an order that shapes alone decide.
//
// Bytes that must move for rows x width numbers of c bytes: forward 2 of them, backward 4 (x, grad_y and
// residual read, grad_x written), 5 where y is written again, and the parts twice (4 MB at 4096).
#pragma once

#include <cstdint>
#include <initializer_list>

#include "fsdp/kernels/fp8.h"
#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// Also the number of rows that `parts` needs. Not the device's number of multiprocessors: sums would then
// differ between devices.
constexpr int64_t kRmsNormBlocks = 264;

// Whether the kernels take rows of this shape at these addresses (null: none): whole 16-byte packs, few
// enough for registers.
bool TakesRmsNorm(int64_t width, DType type, std::initializer_list<const void*> addresses);

// Whether they also round bf16 rows of this shape to FP8 (fp8.h): those that whole blocks have.
bool TakesFp8RmsNorm(int64_t width, std::initializer_list<const void*> addresses);

struct RmsNormArgs {
  const void* x;       // [rows x width], as y.
  const void* weight;  // [width]
  void* y;
  float* rstd;  // [rows]
  int64_t rows;
  int64_t width;
  double epsilon;
  DType type;
  float* scales = nullptr;  // [rows]. Given: y is rounded a second time, to FP8 with a scale a row.
  Fp8Seen* seen = nullptr;  // Then as in fp8.h.
};

// REQUIRES: TakesRmsNorm(); also for the backward. With scales: TakesFp8RmsNorm() and bf16.
void RmsNormForward(const RmsNormArgs& args, Stream stream);

struct RmsNormBackwardArgs {
  const void* grad_y;  // [rows x width], as x, residual and grad_x.
  const void* x;
  const float* rstd;     // [rows]
  const void* weight;    // [width]
  const void* residual;  // Null: nothing is added.
  void* grad_x;
  void* y;            // Forward's result again, bit for bit; may be grad_y's place. Null: nobody needs it.
  float* parts;       // [kRmsNormBlocks x width]: scratch. Null: the weight is frozen.
  void* weight_grad;  // [width] in type `grad`, as is:
  bool accumulate;    // whether the sum is added to what is there or replaces it.
  int64_t rows;
  int64_t width;
  DType type;
  DType grad;
  uint32_t* largest = nullptr;  // [width]. Given, with y: the largest magnitudes of its columns (fp8.h).
};

// REQUIRES, with `largest`: TakesFp8RmsNorm() and bf16.
void RmsNormBackward(const RmsNormBackwardArgs& args, Stream stream);

}  // namespace fsdpd::kernels
