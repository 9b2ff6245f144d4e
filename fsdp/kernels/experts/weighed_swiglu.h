// SwiGLU scaled by a weight per row (the routing weight of an expert): silu(gate) * up * weight, in fp32,
// rounded once. A row is all gates followed by all ups.
//
// Minimum memory traffic for n elements of c bytes: 3 n c forward, 6 n c backward.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct WeighedSwigluArgs {
  void* gate_up;         // [rows x 2 width]
  const float* weights;  // [rows]
  void* product;         // [rows x width]
  float* grad_weights;   // [rows]: output of the backward.
  const int32_t* used;  // *used: rows from this one on are neither read nor written. Null: all rows are used.
  int64_t rows;
  int64_t width;
  DType type;
};

void WeighedSwigluForward(const WeighedSwigluArgs& args, Stream stream);

// On entry `product` is its gradient; on return it is the product, and gate_up is its own gradient.
void WeighedSwigluBackward(const WeighedSwigluArgs& args, Stream stream);

}  // namespace fsdpd::kernels
