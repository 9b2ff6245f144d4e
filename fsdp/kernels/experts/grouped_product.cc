#include "fsdp/kernels/experts/grouped_product.h"

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/native/cuda/GroupMM.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAFunctions.h>

#include "base/check.h"

namespace fsdpd::kernels {
namespace {

constexpr int64_t kPackBytes = 16, kMostGroups = 1023;

bool InPacks(std::initializer_list<const void*> addresses, std::initializer_list<int64_t> numbers) {
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % kPackBytes != 0) return false;
  }
  for (const int64_t number : numbers) {
    if (number % kGroupedStep != 0) return false;
  }
  return true;
}

// Whether the product uses LibTorch's grouped GEMM.
bool IsFast(const GroupedProductArgs& args) {
  const int generation = at::cuda::getCurrentDeviceProperties()->major;
  return args.type == DType::kBf16 && args.experts <= kMostGroups && (generation == 9 || generation == 10) &&
         InPacks({args.x, args.y, args.matrix}, {args.inputs, args.outputs, args.x_stride, args.y_stride});
}

}  // namespace

void GroupedProduct(GroupedForm form, const GroupedProductArgs& args, Stream stream) {
  if (args.experts == 0 || args.inputs == 0 || args.outputs == 0) return;
  if (!IsFast(args)) return PlainGroupedProduct(form, args, stream);
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  const auto of = [&device](void* data, at::IntArrayRef sizes, at::IntArrayRef strides) {
    return at::from_blob(data, sizes, strides, at::TensorOptions(at::kBFloat16).device(device));
  };
  at::Tensor x = of(args.x, {args.rows, args.inputs}, {args.x_stride, 1});
  at::Tensor y = of(args.y, {args.rows, args.outputs}, {args.y_stride, 1});
  at::Tensor matrix = of(args.matrix, {args.experts, args.outputs, args.inputs},
                         {args.outputs * args.inputs, args.inputs, 1});
  const at::Tensor ends = at::from_blob(const_cast<int32_t*>(args.ends), {args.experts},
                                        at::TensorOptions(at::kInt).device(device));
  // Calls the function behind at::_grouped_mm directly, as that one would allocate a result of its own.
  switch (form) {
    case GroupedForm::kForward:
      return at::cuda::detail::bf16bf16_grouped_mm(x, matrix.transpose(1, 2), ends, std::nullopt, y);
    case GroupedForm::kBackward:
      return at::cuda::detail::bf16bf16_grouped_mm(y, matrix, ends, std::nullopt, x);
    case GroupedForm::kWeights:
      return at::cuda::detail::bf16bf16_grouped_mm(y.t(), x, ends, std::nullopt, matrix);
  }
}

}  // namespace fsdpd::kernels
