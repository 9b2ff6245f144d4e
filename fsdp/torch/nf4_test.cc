#include "fsdp/torch/nf4.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "fsdp/kernels/nf4/nf4_format.h"

namespace fsdpd {
namespace {

at::Tensor Quantized(const at::Tensor& numbers) {
  at::Tensor blocks = at::empty({Nf4Bytes(numbers.numel())}, at::kByte);
  QuantizeNf4(numbers, blocks);
  return blocks;
}

at::Tensor Dequantized(const at::Tensor& blocks, int64_t elements, at::ScalarType type = at::kFloat) {
  at::Tensor numbers = at::empty({elements}, type);
  DequantizeNf4(blocks, numbers);
  return numbers;
}

// Probability that a normal number is below x.
double NormalBelow(double x) { return 0.5 * std::erfc(-x / std::sqrt(2)); }

// The positive levels are quantiles at equal distances, and so are the negative ones, over the largest.
TEST(Nf4, LevelsAreNormalQuantiles) {
  constexpr double kOffset = 0.9677083, kLargest = 1.8481308;  // The quantile of kOffset.
  EXPECT_NEAR(NormalBelow(kLargest), kOffset, 1e-6);
  for (int i = 0; i < 8; ++i)
    EXPECT_NEAR(NormalBelow(kernels::Nf4Level(8 + i) * kLargest), 0.5 + (kOffset - 0.5) * (i + 1) / 8, 1e-6);
  for (int i = 0; i < 8; ++i)
    EXPECT_NEAR(NormalBelow(kernels::Nf4Level(i) * kLargest), 1 - kOffset + (kOffset - 0.5) * i / 7, 1e-6);
}

// Made by bitsandbytes 0.50.2: quantize_4bit(numbers, blocksize=64, quant_type="nf4").
TEST(Nf4, HasTheBitsOfBitsandbytes) {
  at::Tensor numbers = at::empty({128});
  for (int i = 0; i < 128; ++i) numbers[i] = static_cast<float>(i * 37 % 128 - 63) / 41;
  const std::vector<uint8_t> codes = {3,   158, 22,  192, 58,  225, 109, 4,   174, 39,  208, 75,  242,
                                      141, 21,  191, 40,  225, 92,  243, 158, 22,  192, 57,  225, 109,
                                      3,   174, 23,  208, 74,  242, 125, 20,  191, 40,  209, 91,  242,
                                      142, 21,  207, 57,  225, 108, 3,   158, 22,  208, 74,  226, 125,
                                      4,   191, 39,  209, 91,  242, 142, 21,  207, 57,  225, 92};
  const at::Tensor blocks = Quantized(numbers);
  const uint8_t* const bytes = blocks.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t block = i / (kNf4Block / 2), at = i % (kNf4Block / 2);
    EXPECT_EQ(bytes[block * kNf4BlockBytes + 4 + at], codes[i]) << i;
  }
  EXPECT_EQ(*reinterpret_cast<const float*>(bytes), 1.5365853309631348f);
  EXPECT_EQ(*reinterpret_cast<const float*>(bytes + kNf4BlockBytes), 1.5609755516052246f);
}

TEST(Nf4, GivesTheNearestLevel) {
  const at::Tensor numbers = at::randn({1 << 14}) * 3;
  const at::Tensor got = Dequantized(Quantized(numbers), numbers.numel());
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    const int64_t block = i / kNf4Block * kNf4Block;
    const float largest = numbers.narrow(0, block, kNf4Block).abs().max().item<float>();
    const float number = numbers[i].item<float>() / largest;
    float nearest = 2;
    for (int code = 0; code < 16; ++code) {
      if (std::abs(kernels::Nf4Level(code) - number) < std::abs(nearest - number))
        nearest = kernels::Nf4Level(code);
    }
    ASSERT_EQ(got[i].item<float>(), nearest * largest) << i;
  }
}

TEST(Nf4, ZerosStayZero) {
  const at::Tensor zeros = at::zeros({64});
  EXPECT_TRUE(Dequantized(Quantized(zeros), 64).equal(zeros));
}

TEST(Nf4, NanMakesItsBlockNan) {
  const at::Tensor numbers = at::randn({128});
  numbers[5] = std::nanf("");
  const at::Tensor got = Dequantized(Quantized(numbers), 128).isnan();
  EXPECT_TRUE(got.narrow(0, 0, 64).all().item<bool>());
  EXPECT_FALSE(got.narrow(0, 64, 64).any().item<bool>());
}

TEST(Nf4, RoundsToNarrowTypesOnce) {
  const at::Tensor blocks = Quantized(at::randn({640}));
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
    EXPECT_TRUE(Dequantized(blocks, 640, type).equal(Dequantized(blocks, 640).to(type)));
}

}  // namespace
}  // namespace fsdpd
