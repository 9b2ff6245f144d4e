#include "fsdp/kernels/experts/scaled_grouped_product.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/cuda/ScaledGroupMM.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAFunctions.h>

namespace fsdpd::kernels {
namespace {

at::Tensor Of(void* data, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  return at::from_blob(data, sizes, strides, at::TensorOptions(type).device(device));
}
at::Tensor Numbers(void* data, int64_t rows, int64_t width) {
  return Of(data, {rows, width}, {width, 1}, at::kFloat8_e4m3fn);
}
at::Tensor Ends(const int32_t* ends, int experts) {
  return Of(const_cast<int32_t*>(ends), {experts}, {1}, at::kInt);
}

// Calls the function behind at::_scaled_grouped_mm directly, as that one would allocate a result of its own.
void Multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
              const at::Tensor& b_scales, const at::Tensor& ends, at::Tensor result) {
  at::cuda::detail::f8f8bf16_grouped_mm(a, b, a_scales, b_scales, ends, /*bias=*/std::nullopt,
                                        /*use_fast_accum=*/true, result);
}

}  // namespace

void ScaledGroupedRows(const ScaledRowsArgs& args, Stream /*stream*/) {
  if (args.experts == 0 || args.rows == 0 || args.outputs == 0) return;
  const at::Tensor matrix = Of(args.matrix, {args.experts, args.outputs, args.inputs},
                               {args.outputs * args.inputs, args.inputs, 1}, at::kFloat8_e4m3fn);
  Multiply(Numbers(args.x, args.rows, args.inputs), matrix.transpose(1, 2),
           Of(args.x_scales, {args.rows}, {1}, at::kFloat),
           Of(args.scales, {args.experts, args.outputs}, {args.outputs, 1}, at::kFloat),
           Ends(args.ends, args.experts),
           Of(args.y, {args.rows, args.outputs}, {args.y_stride, 1}, at::kBFloat16));
}

void ScaledGroupedGrads(const ScaledGradsArgs& args, Stream /*stream*/) {
  if (args.experts == 0 || args.outputs == 0 || args.inputs == 0) return;
  Multiply(Numbers(args.y, args.outputs, args.rows), Numbers(args.x, args.inputs, args.rows).t(),
           Of(args.y_scales, {args.experts * args.outputs}, {1}, at::kFloat),
           Of(args.x_scales, {args.experts * args.inputs}, {1}, at::kFloat), Ends(args.ends, args.experts),
           Of(args.matrix, {args.experts, args.outputs, args.inputs},
              {args.outputs * args.inputs, args.inputs, 1}, at::kBFloat16));
}

}  // namespace fsdpd::kernels
