#include "fsdp/profile/compute_rates.h"

#include <gtest/gtest.h>

#include "fsdp/profile/testing/local_benches.h"

namespace fsdpd {
namespace {

// No size divides another.
constexpr ComputeSizes kSmall = {
    13, 24, 17, /*sequence=*/11, /*heads=*/2, /*head_size=*/8, /*elements=*/1001};

TEST(ComputeRates, MeasuresAllRatesForBothAttentionTypes) {
  for (const DType attention : {DType::kFp32, DType::kBf16}) {
    OnLocalBenches(2, [&](RankBench* bench) {
      DeviceProfile rates;
      ASSERT_EQ(MeasureCompute(bench, kSmall, attention, &rates), absl::OkStatus());
      for (const double rate :
           {rates.fp32_matmul_flops, rates.half_matmul_flops, rates.attention_forward_flops,
            rates.attention_backward_flops, rates.memory_bytes_per_second}) {
        EXPECT_GT(rate, 0);
        EXPECT_LT(rate, 1e15) << "of thirteen rows, on a CPU";
      }
      EXPECT_GE(rates.attention_overhead_tokens, 0);
      EXPECT_LE(rates.attention_overhead_tokens, kSmall.sequence / 4);
    });
  }
}

TEST(ComputeRates, ProductIsRepeatable) {
  EXPECT_EQ(ProductFlops(kSmall), 2 * 13 * 24 * 17);
  OnLocalBenches(1, [&](RankBench* bench) {
    const auto product = MakeProduct(bench, kSmall, DType::kFp32);
    ASSERT_TRUE(product.ok()) << product.status();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(RunOn(bench->compute.get(), *product).ok());
  });
}

// A CPU's FP8 rate is not part of any profile, but it must be correct.
TEST(ComputeRates, VerifiesFp8Product) {
  ComputeSizes sizes = kSmall;
  sizes.inner = 32;
  OnLocalBenches(1, [&](RankBench* bench) {
    const auto product = MakeFp8Product(bench, sizes);
    ASSERT_TRUE(product.ok()) << product.status();
    EXPECT_TRUE(RunOn(bench->compute.get(), *product).ok());
    DeviceProfile rates;
    EXPECT_EQ(MeasureCompute(bench, kSmall, DType::kFp32, &rates), absl::OkStatus());
    EXPECT_EQ(rates.fp8_matmul_flops, 0);
  });
}

}  // namespace
}  // namespace fsdpd
