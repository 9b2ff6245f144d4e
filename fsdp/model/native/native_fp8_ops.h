// Norms and SwiGLU of native_ops whose results are in FP8 (native_fp8.h) when they are written: the same bits
// as those functions and a rounding of what they return. bf16 in.
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

// What products read of SwiGLU's backward: the input's gradient rows, those of matrices columns.
struct Fp8SwigluGrads {
  Fp8 gate_up;          // The gradients of gate and up, multiplied with `scales`.
  Fp8 gate_up_columns;  // Turned, as Fp8Columns has them.
  Fp8 product_columns;  // SwiGLU's product again, turned.
};

// `scales`: of the rows of the weights that gate and up are products with. May overwrite the others.
Fp8SwigluGrads Fp8SwigluBackward(const at::Tensor& grad_product, const at::Tensor& gate_up,
                                 const at::Tensor& scales);

}  // namespace fsdpd
