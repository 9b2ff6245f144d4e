#include "fsdp/torch/serial_copy.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fsdpd {
namespace {

// All bf16 and fp16 bit patterns including NaN and infinity, and fp32 between any two.
at::Tensor AllOf(at::ScalarType type) { return at::arange(1 << 16, at::kInt).to(at::kShort).view(type); }

TEST(SerialCopy, CastsEqualLibTorch) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor narrow = AllOf(type), wide = narrow.to(at::kFloat);
    EXPECT_TRUE(SerialCast(narrow, at::kFloat).view(at::kInt).equal(wide.view(at::kInt)));
    const at::Tensor between = wide.index({wide.isfinite()}) * 1.001f;
    EXPECT_TRUE(SerialCast(between, type).view(at::kShort).equal(between.to(type).view(at::kShort)));
  }
  const at::Tensor same = at::arange(3, at::kFloat);
  EXPECT_TRUE(SerialCast(same, at::kFloat).is_same(same));
}

TEST(SerialCopy, CopiesIntoView) {
  const at::Tensor to = at::zeros({10}, at::kFloat);
  SerialCopy(at::arange(1, 4, at::kFloat), to.narrow(0, 5, 3));
  EXPECT_EQ(to.sum().item<float>(), 6);
  EXPECT_EQ(to[5].item<float>(), 1);
  SerialCopy(at::empty({0}, at::kFloat), to.narrow(0, 0, 0));
}

}  // namespace
}  // namespace fsdpd
