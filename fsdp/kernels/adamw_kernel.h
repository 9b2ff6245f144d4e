// AdamW with decoupled weight decay over a contiguous run of parameters, fused into one pass:
//
//   g = grad / *grad_divisor,  m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//   param = param (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//   lr = *learning_rate lr_scale,  t = *steps_taken
//
// If *skip is 1, the kernel writes nothing: only the device knows whether a step is applied (a non-finite
// gradient norm skips it), so the decision must not need a host synchronization. 16-bit moments and gradients
// are widened to fp32 when read; a 16-bit moment is rounded to nearest when written. kFp8 moments are rounded
// stochastically, see fp8_moment_format.h.
//
// A parameter is either fp32 (`param`) or split fp32 (`high` and `low`, split_bits.h). Split fp32 contains
// the bf16 parameter that the forward pass reads; the update is computed in fp32 and stored back split.
//
// Minimum memory traffic for n parameters: 28 n bytes with fp32 gradient and moments.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct AdamWArgs {
  float* param;    // [elements], like grad and the moments; null for split fp32.
  uint16_t* high;  // Split fp32, instead of param.
  uint16_t* low;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  const double* learning_rate;  // Device scalars, like the next three.
  const float* grad_divisor;
  const float* skip;
  const float* steps_taken;
  int64_t elements;
  double lr_scale;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  DType grad_type;
  DType moment_type;
};

void AdamWUpdate(const AdamWArgs& args, Stream stream);

}  // namespace fsdpd::kernels
