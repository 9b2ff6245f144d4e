#include "fsdp/optimizer/split_fp32.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "fsdp/kernels/split_bits.h"
#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

uint32_t BitsOf(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float ValueOf(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool IsTieThatRoundsUp(uint32_t bits) { return (bits & 0x1ffff) == 0x18000; }

// Every upper half, with the lower half around 0, around the tie, and some between.
std::vector<float> AllKinds() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x1234u, 0x7ffeu, 0x7fffu, 0x8000u, 0x8001u, 0x8002u,
                               0xa5a5u, 0xfffeu, 0xffffu}) {
      values.push_back(ValueOf(upper << 16 | low));
    }
  }
  return values;
}

at::Tensor Flat(std::vector<float>* values) {
  return at::from_blob(values->data(), {static_cast<int64_t>(values->size())}, at::kFloat);
}

TEST(SplitFp32, HighPartIsTheBf16Cast) {
  std::vector<float> values = AllKinds();
  const at::Tensor all = Flat(&values);
  const SplitFp32 split = SplitFp32::Make(all.numel(), at::kCPU);
  split.Write(0, all);
  const at::Tensor cast = all.to(at::kBFloat16);
  const at::Tensor numbers = all.isnan().logical_not();
  EXPECT_TRUE(
      split.high.view(at::kShort).masked_select(numbers).equal(cast.view(at::kShort).masked_select(numbers)));
  EXPECT_TRUE(split.high.isnan().equal(all.isnan()));
}

TEST(SplitFp32, RoundTripsExceptTiesThatRoundUp) {
  std::vector<float> values = AllKinds();
  const SplitFp32 split = SplitFp32::Make(static_cast<int64_t>(values.size()), at::kCPU);
  split.Write(0, Flat(&values));
  const at::Tensor read = split.Read();
  int moved = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float back = read.const_data_ptr<float>()[i];
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(back));
    } else if (IsTieThatRoundsUp(BitsOf(values[i]))) {
      ASSERT_EQ(BitsOf(back), BitsOf(values[i]) + 1);
      ++moved;
    } else {
      ASSERT_EQ(BitsOf(back), BitsOf(values[i]));
    }
  }
  EXPECT_EQ(moved, 0x8000 - 128);  // Of the odd upper halves, 128 are NaNs with this lower half.
}

TEST(SplitFp32, RoundTripIsIdempotent) {
  std::vector<float> values = AllKinds();
  const SplitFp32 split = SplitFp32::Make(static_cast<int64_t>(values.size()), at::kCPU);
  split.Write(0, Flat(&values));
  const SplitFp32 again = SplitFp32::Make(split.high.numel(), at::kCPU);
  again.Write(0, split.Read());
  EXPECT_TRUE(again.high.view(at::kShort).equal(split.high.view(at::kShort)));
  EXPECT_TRUE(again.low.equal(split.low));
}

TEST(SplitFp32, WritesRanges) {
  const SplitFp32 split = SplitFp32::Make(7, at::kCPU);
  EXPECT_TRUE(split.Read().eq(0).all().item<bool>());
  const at::Tensor values = at::randn({3});
  split.Write(2, values);
  const at::Tensor read = split.Read();
  EXPECT_LE((read.narrow(0, 2, 3) - values).abs().max().item<float>(), 1e-6f);
  EXPECT_EQ(read.ne(0).sum().item<int64_t>(), 3);
  split.Write(7, at::randn({0}));
}

}  // namespace
}  // namespace fsdpd
