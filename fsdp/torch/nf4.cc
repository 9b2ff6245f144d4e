#include "fsdp/torch/nf4.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "base/check.h"
#include "fsdp/kernels/nf4/nf4_conversion.h"
#include "fsdp/kernels/nf4/nf4_format.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

constexpr int64_t kGrain = 1 << 10;  // Blocks of numbers per task.

void Check(const at::Tensor& numbers, const at::Tensor& blocks) {
  FSDPD_CHECK(numbers.is_contiguous() && blocks.is_contiguous() && blocks.scalar_type() == at::kByte);
  FSDPD_CHECK(numbers.numel() % kNf4Block == 0 && blocks.numel() == Nf4Bytes(numbers.numel()));
}

}  // namespace

void QuantizeNf4(const at::Tensor& numbers, const at::Tensor& blocks) {
  Check(numbers, blocks);
  const float* const from = numbers.const_data_ptr<float>();
  uint8_t* const to = blocks.mutable_data_ptr<uint8_t>();
  if (numbers.is_cuda())
    return kernels::QuantizeNf4(from, numbers.numel(), to, kernels::CurrentStream(numbers.get_device()));
  for (int64_t b = 0; b < numbers.numel() / kNf4Block; ++b)
    kernels::Nf4Quantize(from + b * kNf4Block, to + b * kNf4BlockBytes);
}

void DequantizeNf4(const at::Tensor& blocks, const at::Tensor& into) {
  Check(into, blocks);
  const uint8_t* const from = blocks.const_data_ptr<uint8_t>();
  if (into.is_cuda()) {
    return kernels::DequantizeNf4(from, into.numel(), into.mutable_data_ptr(), DTypeOf(into.scalar_type()),
                                  kernels::CurrentStream(into.get_device()));
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, into.scalar_type(), "DequantizeNf4", [&] {
    scalar_t* const to = into.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, into.numel() / kNf4Block, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * kNf4Block; i < end * kNf4Block; ++i) {
        to[i] = static_cast<scalar_t>(
            kernels::Nf4Number(from + i / kNf4Block * kNf4BlockBytes, static_cast<int>(i % kNf4Block)));
      }
    });
  });
}

}  // namespace fsdpd
