#include "fsdp/model/unit/draw_normals.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace fsdpd {
namespace {

constexpr kernels::NormalNumbers kNumbers = {0xfedcba9876543210, 0.02f, 0.25f};

class DrawNormalsTest : public testing::TestWithParam<VectorSet> {};

TEST_P(DrawNormalsTest, EveryVectorSetMatchesScalarBits) {
  if (!HasVectorSet(GetParam())) GTEST_SKIP() << "not on this processor";
  constexpr int64_t kFar = int64_t{1} << 35;  // Counters that need more than 32 bits.
  for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{1022}, kFar - 514, kFar + 3}) {
    for (const int64_t elements : {0, 1, 3, 4, 255, 256, 257, 511, 1021, 4099}) {
      std::vector<float> values(elements + 1, 7), expected(elements + 1, 7);
      DrawNormals(GetParam(), kNumbers, begin, elements, values.data());
      for (int64_t i = 0; i < elements; ++i)
        expected[i] = kernels::NumberAt(kNumbers, static_cast<uint64_t>(begin + i));
      EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0)
          << begin << " " << elements;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, DrawNormalsTest,
                         testing::Values(VectorSet::kBaseline, VectorSet::kAvx2, VectorSet::kAvx512));

}  // namespace
}  // namespace fsdpd
