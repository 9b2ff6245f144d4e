// RMSNorm and SwiGLU fused with FP8 quantization of their output (native_fp8.h): bitwise equal to quantizing
// the results of native_ops. Inputs are bf16.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/model/native/native_fp8.h"

namespace fsdpd {

struct Fp8Normed {
  Fp8 y;
  at::Tensor rstd;  // [rows x 1] fp32: 1 / rms.
};
Fp8Normed Fp8RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double epsilon);

Fp8 Fp8SwigluForward(const at::Tensor& gate_up);

// Backward of SwiGLU in the form that the next products read: by row for the input's gradient, by column for
// the gradients of matrices.
struct Fp8SwigluGrads {
  Fp8 gate_up;          // Gradients of gate and up, multiplied by `scales`.
  Fp8 gate_up_columns;  // The gradients without `scales`, transposed as by Fp8Columns.
  Fp8 product_columns;  // The recomputed output of SwiGLU, transposed.
};

// `scales`: row scales of the weights that produced gate_up. May overwrite the other arguments.
Fp8SwigluGrads Fp8SwigluBackward(const at::Tensor& grad_product, const at::Tensor& gate_up,
                                 const at::Tensor& scales);

}  // namespace fsdpd
