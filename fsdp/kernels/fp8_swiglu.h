// SwiGLU (swiglu.h) and its backward, bf16 in and FP8 (fp8.h) out: the bits of rounding what swiglu.h's
// kernels write, without that on its way through memory.
//
// Bytes that must move for n numbers of the product: forward 5 n (an 8B layer at 8192 tokens: 0.59 GB).
// Backward 17 n (2.0 GB): scales of columns take a reading of their own, and what comes of it is made twice.
#pragma once

#include <cstdint>

#include "fsdp/kernels/fp8.h"
#include "fsdp/kernels/stream.h"

namespace fsdpd::kernels {

struct Fp8SwigluArgs {
  const void* gate_up;  // [rows x 2 width] bf16, contiguous, of a width that 8 divides; 16-byte addresses.
  int64_t rows;
  int64_t width;
  void* product;  // [rows x width]
  float* scales;  // [rows]
  Fp8Seen* seen = nullptr;
};
void Fp8SwigluForward(const Fp8SwigluArgs& args, Stream stream);

struct Fp8SwigluBackwardArgs {
  const void* grad_product;  // [rows x width] bf16, as above.
  const void* gate_up;
  // [2 width] powers of two, at a 16-byte address, that gradients are multiplied with before they are rounded
  // as rows: Fp8RowsArgs::by_column.
  const float* by_column;
  int64_t rows;
  int64_t width;
  int64_t padded;  // Rows of what is turned, a multiple of 4: from `rows` on as in Fp8Columns.
  // The gradients of gate and up, as rows and turned; and the product again, turned.
  void* grads;                   // [rows x 2 width]
  float* grad_scales;            // [rows]
  void* turned_grads;            // [2 width x padded]
  float* turned_grad_scales;     // [2 width]
  void* turned_product;          // [width x padded]
  float* turned_product_scales;  // [width]
  uint32_t* largest;             // [rows + 3 width]: room for magnitudes meanwhile.
};
void Fp8SwigluBackward(const Fp8SwigluBackwardArgs& args, Stream stream);

}  // namespace fsdpd::kernels
