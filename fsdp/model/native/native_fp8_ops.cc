#include "fsdp/model/native/native_fp8_ops.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "base/check.h"
#include "fsdp/kernels/fp8_swiglu.h"
#include "fsdp/kernels/rms_norm.h"
#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/model/native/native_ops.h"

namespace fsdpd {
namespace {

kernels::Stream StreamOf(const at::Tensor& x) { return kernels::CurrentStream(x.get_device()); }

bool IsRoundedByKernel(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cuda() && x.is_contiguous() &&
         kernels::TakesFp8RmsNorm(x.size(1), {x.const_data_ptr(), weight.const_data_ptr()});
}

}  // namespace

Fp8Normed Fp8RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  if (!IsRoundedByKernel(x, weight)) {
    Normed normed = RmsNormForward(x, weight, epsilon);
    return {Fp8Rows(normed.y), std::move(normed.rstd)};
  }
  FSDPD_CHECK(x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16);
  Fp8Normed normed = {EmptyFp8(x.size(0), x.size(1), x),
                      at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))};
  kernels::RmsNormForward({x.const_data_ptr(), weight.const_data_ptr(), normed.y.values.data_ptr(),
                           normed.rstd.data_ptr<float>(), x.size(0), x.size(1), epsilon, DType::kBf16,
                           normed.y.scales.data_ptr<float>(), Fp8Watch::PlaceOf(Fp8Class::kInputs)},
                          StreamOf(x));
  return normed;
}

Fp8 Fp8SwigluForward(const at::Tensor& gate_up) {
  if (!gate_up.is_cuda()) return Fp8Rows(SwigluForward(gate_up));
  FSDPD_CHECK(gate_up.is_contiguous() && gate_up.scalar_type() == at::kBFloat16);
  const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
  Fp8 product = EmptyFp8(rows, width, gate_up);
  kernels::Fp8SwigluForward({gate_up.const_data_ptr(), rows, width, product.values.data_ptr(),
                             product.scales.data_ptr<float>(), Fp8Watch::PlaceOf(Fp8Class::kInputs)},
                            StreamOf(gate_up));
  return product;
}

Fp8SwigluGrads Fp8SwigluBackward(const at::Tensor& grad_product, const at::Tensor& gate_up,
                                 const at::Tensor& scales) {
  if (!gate_up.is_cuda()) {
    SwigluBackward(grad_product, gate_up);
    return {Fp8Rows(gate_up, scales), Fp8Columns(gate_up), Fp8Columns(grad_product)};
  }
  FSDPD_CHECK(grad_product.is_contiguous() && gate_up.is_contiguous());
  FSDPD_CHECK(scales.is_contiguous() && scales.numel() == gate_up.size(1));
  const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2, padded = PaddedRows(rows);
  Fp8SwigluGrads grads = {EmptyFp8(rows, 2 * width, gate_up), EmptyFp8(2 * width, padded, gate_up),
                          EmptyFp8(width, padded, gate_up)};
  const at::Tensor largest = at::empty({rows + 3 * width}, gate_up.options().dtype(at::kInt));
  kernels::Fp8SwigluBackwardArgs args = {};
  args.grad_product = grad_product.const_data_ptr();
  args.gate_up = gate_up.const_data_ptr();
  args.by_column = scales.const_data_ptr<float>();
  args.rows = rows;
  args.width = width;
  args.padded = padded;
  args.grads = grads.gate_up.values.data_ptr();
  args.grad_scales = grads.gate_up.scales.data_ptr<float>();
  args.transposed_grads = grads.gate_up_columns.values.data_ptr();
  args.transposed_grad_scales = grads.gate_up_columns.scales.data_ptr<float>();
  args.transposed_product = grads.product_columns.values.data_ptr();
  args.transposed_product_scales = grads.product_columns.scales.data_ptr<float>();
  args.largest = reinterpret_cast<uint32_t*>(largest.data_ptr<int32_t>());
  kernels::Fp8SwigluBackward(args, StreamOf(gate_up));
  return grads;
}

}  // namespace fsdpd
