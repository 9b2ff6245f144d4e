// AdamW with decoupled weight decay on one run of parameters, in one pass:
//
//   g = grad / *grad_divisor,  m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//   param = param (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//   lr = *learning_rate lr_scale,  t = *steps_taken
//
// Nothing is written where *skip is 1: whether a step counts is known to the device alone. Moments and
// gradients of 16 bits are widened as they are read, and a moment is rounded to the nearest as it is written.
// Moments of kFp8 are rounded as fp8_moments.h says.
//
// A parameter may lie in halves (halves.h), which makes it and its bf16 in one: computed in fp32, and stored
// so.
//
// Bytes that must move for n parameters: 28 n with fp32 gradient and moments.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct AdamWArgs {
  float* param;    // [elements], as grad and the moments; null where there are halves.
  uint16_t* high;  // Instead of param.
  uint16_t* low;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  const double* learning_rate;  // Scalars of the device.
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
