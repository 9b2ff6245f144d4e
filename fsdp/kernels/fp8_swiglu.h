// SwiGLU and its backward with bf16 inputs and FP8 (fp8.h) outputs. The result has the same bits as
// quantizing the output of swiglu.h, but the bf16 intermediate is never written to memory.
//
// Minimum memory traffic for n elements of the product: forward 5 n bytes (an 8B layer at 8192 tokens: 0.59
// GB); backward 17 n (2.0 GB), since the column scales need a read of their own and the outputs are computed
// twice.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/kernels/fp8.h"

namespace fsdpd::kernels {

struct Fp8SwigluArgs {
  const void* gate_up;  // [rows x 2 width] bf16, contiguous, 16-byte aligned; width is a multiple of 8.
  int64_t rows;
  int64_t width;
  void* product;  // [rows x width]
  float* scales;  // [rows]
  Fp8Statistics* seen = nullptr;
};
void Fp8SwigluForward(const Fp8SwigluArgs& args, Stream stream);

struct Fp8SwigluBackwardArgs {
  const void* grad_product;  // [rows x width] bf16, aligned as above.
  const void* gate_up;
  // [2 width] powers of two, 16-byte aligned, that multiply the gradients before they are quantized by row:
  // see Fp8RowsArgs::by_column.
  const float* by_column;
  int64_t rows;
  int64_t width;
  int64_t padded;  // Columns of the transposed outputs, a multiple of 4; padding as in Fp8Columns.
  // The gradients of gate and up, by row and transposed; and the recomputed product, transposed.
  void* grads;                       // [rows x 2 width]
  float* grad_scales;                // [rows]
  void* transposed_grads;            // [2 width x padded]
  float* transposed_grad_scales;     // [2 width]
  void* transposed_product;          // [width x padded]
  float* transposed_product_scales;  // [width]
  uint32_t* largest;                 // [rows + 3 width]: scratch for maxima.
};
void Fp8SwigluBackward(const Fp8SwigluBackwardArgs& args, Stream stream);

}  // namespace fsdpd::kernels
