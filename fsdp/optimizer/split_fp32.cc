#include "fsdp/optimizer/split_fp32.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "base/check.h"
#include "fsdp/kernels/split_bits.h"
#include "fsdp/torch/serial_copy.h"

namespace fsdpd {
namespace {

at::Tensor OnCpu(int64_t elements, at::ScalarType type) {
  return at::empty({elements}, at::TensorOptions().dtype(type));
}

}  // namespace

SplitFp32 SplitFp32::Make(int64_t elements, at::Device device) {
  const auto zeros = [&](at::ScalarType type) {
    return at::zeros({elements}, at::TensorOptions().dtype(type).device(device));
  };
  return {zeros(at::kBFloat16), zeros(at::kShort)};
}

void SplitFp32::Write(int64_t begin, const at::Tensor& values) const {
  FSDPD_CHECK(values.is_cpu() && values.scalar_type() == at::kFloat);
  const at::Tensor whole = values.contiguous();
  const int64_t elements = whole.numel();
  const at::Tensor highs = OnCpu(elements, at::kBFloat16), lows = OnCpu(elements, at::kShort);
  const auto* from = static_cast<const char*>(whole.const_data_ptr());
  auto* to_high = static_cast<uint16_t*>(highs.data_ptr());
  auto* to_low = static_cast<uint16_t*>(lows.data_ptr());
  for (int64_t i = 0; i < elements; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    const kernels::HalfBits split = kernels::SplitBits(bits);
    to_high[i] = split.high;
    to_low[i] = split.low;
  }
  SerialCopy(highs, high.narrow(0, begin, elements));
  SerialCopy(lows, low.narrow(0, begin, elements));
}

at::Tensor SplitFp32::Read() const {
  const at::Tensor highs = high.cpu(), lows = low.cpu();
  const at::Tensor values = OnCpu(high.numel(), at::kFloat);
  const auto* from_high = static_cast<const uint16_t*>(highs.const_data_ptr());
  const auto* from_low = static_cast<const uint16_t*>(lows.const_data_ptr());
  auto* to = static_cast<char*>(values.data_ptr());
  for (int64_t i = 0; i < values.numel(); ++i) {
    const uint32_t bits = kernels::JoinBits({from_high[i], from_low[i]});
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
  return values;
}

}  // namespace fsdpd
