// SwiGLU of rows that count each as much as its weight: silu(gate) * up * weight, in fp32 and rounded once. A
// row has its gates and then its ups.
//
// Bytes that must move for n numbers of c bytes: 3 n c forward, 6 n c backward.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct WeighedSwigluArgs {
  void* gate_up;         // [rows x 2 width]
  const float* weights;  // [rows]
  void* product;         // [rows x width]
  float* grad_weights;   // [rows]: of backward.
  const int32_t* used;   // Rows from this number on are neither read nor written. Null: all are.
  int64_t rows;
  int64_t width;
  DType type;
};

void WeighedSwigluForward(const WeighedSwigluArgs& args, Stream stream);

// `product` has its gradient and gets the product, gates and ups get their gradients.
void WeighedSwigluBackward(const WeighedSwigluArgs& args, Stream stream);

}  // namespace fsdpd::kernels
