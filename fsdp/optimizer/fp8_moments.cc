#include "fsdp/optimizer/fp8_moments.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "fsdp/kernels/fp8_moment_format.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

// Elements per task: large next to the cost of dispatching it.
constexpr int64_t kGrain = 1 << 15;

// Writes stored[i] = make(i) for all of them.
template <typename Make>
void Store(const at::Tensor& stored, Make make) {
  FSDPD_CHECK(stored.is_cpu() && stored.scalar_type() == at::kByte && stored.is_contiguous());
  auto* const to = stored.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, stored.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = make(i);
  });
}

const float* Fp32Of(const at::Tensor& numbers) {
  FSDPD_CHECK(numbers.is_cpu() && numbers.is_contiguous());
  return numbers.const_data_ptr<float>();
}

// Ignoring the sign, floats are ordered like their bits, and NaN is above infinity.
template <typename Bits>
uint32_t LargestBits(const at::Tensor& numbers, Bits magnitude) {
  const auto* const bits = static_cast<const Bits*>(numbers.const_data_ptr());
  Bits largest = 0;
  for (int64_t i = 0; i < numbers.numel(); ++i)
    largest = std::max(largest, static_cast<Bits>(bits[i] & magnitude));
  return largest;
}

// The rounded moment of each bf16 value, indexed by its bits.
std::vector<uint8_t> NearestTable(int moment) {
  const kernels::MomentFormat format = kernels::MomentFormatOf(moment);
  std::vector<uint8_t> table(1 << 16);
  for (uint32_t bits = 0; bits < table.size(); ++bits)
    table[bits] = kernels::NarrowMoment(kernels::FloatOf(bits << 16), kernels::kMomentNearest, format);
  return table;
}

// Table lookup: a rank with 8 G parameters reads 16 G moments
// (docs/bench/2026-11-29-restart-8b-on-one-gpu.md).
at::Tensor NearestOfBf16(const at::Tensor& numbers, int moment) {
  static const std::vector<uint8_t> tables[] = {NearestTable(0), NearestTable(1)};
  FSDPD_CHECK(numbers.is_cpu());
  const at::Tensor stored = at::empty(numbers.sizes(), at::TensorOptions().dtype(at::kByte));
  const uint8_t* const table = tables[moment].data();
  Store(stored, [table, from = static_cast<const uint16_t*>(numbers.const_data_ptr())](int64_t i) {
    return table[from[i]];
  });
  return stored;
}

const uint8_t* StoredBytes(const at::Tensor& stored) {
  FSDPD_CHECK(stored.is_cpu() && stored.scalar_type() == at::kByte && stored.is_contiguous());
  return stored.const_data_ptr<uint8_t>();
}

}  // namespace

at::ScalarType MomentTypeOf(DType dtype) { return dtype == DType::kFp8 ? at::kByte : ScalarTypeOf(dtype); }

at::Tensor WidenMoments(const at::Tensor& stored, int moment) {
  const at::Tensor numbers = at::empty(stored.sizes(), at::TensorOptions().dtype(at::kFloat));
  const uint8_t* const from = StoredBytes(stored);
  auto* const to = numbers.mutable_data_ptr<float>();
  const kernels::MomentFormat format = kernels::MomentFormatOf(moment);
  at::parallel_for(0, stored.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = kernels::WidenMoment(from[i], format);
  });
  return numbers;
}

// bf16 is the upper half of fp32, and represents every 8-bit value exactly.
void WidenMomentsTo(const at::Tensor& stored, int moment, char* to) {
  const uint8_t* const from = StoredBytes(stored);
  const kernels::MomentFormat format = kernels::MomentFormatOf(moment);
  for (int64_t i = 0; i < stored.numel(); ++i) {
    const auto bits = static_cast<uint16_t>(kernels::FloatBits(kernels::WidenMoment(from[i], format)) >> 16);
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
}

double LargestMoment(int moment) {
  const kernels::MomentFormat format = kernels::MomentFormatOf(moment);
  return kernels::WidenMoment(static_cast<uint8_t>(format.most), format);
}

double LargestMagnitude(const at::Tensor& numbers) {
  FSDPD_CHECK(numbers.is_cpu() && numbers.is_contiguous());
  if (numbers.scalar_type() == at::kBFloat16)
    return kernels::FloatOf(LargestBits<uint16_t>(numbers, 0x7fff) << 16);
  FSDPD_CHECK(numbers.scalar_type() == at::kFloat);
  return kernels::FloatOf(LargestBits<uint32_t>(numbers, 0x7fffffff));
}

at::Tensor NearestMoments(const at::Tensor& numbers, int moment) {
  if (numbers.scalar_type() == at::kBFloat16) return NearestOfBf16(numbers.contiguous(), moment);
  const at::Tensor fp32 = numbers.to(at::kFloat).contiguous();
  const at::Tensor stored = at::empty(numbers.sizes(), at::TensorOptions().dtype(at::kByte));
  const kernels::MomentFormat format = kernels::MomentFormatOf(moment);
  Store(stored, [&, from = Fp32Of(fp32)](int64_t i) {
    return kernels::NarrowMoment(from[i], kernels::kMomentNearest, format);
  });
  return stored;
}

void StoreMoments(const std::vector<at::Tensor>& moments, const at::Tensor& main, int64_t steps_taken,
                  const std::vector<at::Tensor>& stored) {
  FSDPD_CHECK(moments.size() == 2 && stored.size() == 2);
  const auto step = static_cast<uint32_t>(steps_taken);
  const float* const params = Fp32Of(main);
  const float* const exp_avg = Fp32Of(moments[0]);
  for (int m = 0; m < 2; ++m) {
    FSDPD_CHECK(moments[m].numel() == stored[m].numel() && main.numel() == stored[m].numel());
    Store(stored[m], [&, m, from = Fp32Of(moments[m])](int64_t i) {
      const uint32_t hash = kernels::MomentHash(params[i], exp_avg[i], step);
      return kernels::NarrowMoment(from[i], kernels::MomentDither(hash, m), kernels::MomentFormatOf(m));
    });
  }
}

}  // namespace fsdpd
