#include "fsdp/comm/ordered_sum.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

template <typename Element>
float SumOfThree(DType type, float a, float b, float c) {
  const Element parts[] = {static_cast<Element>(a), static_cast<Element>(b), static_cast<Element>(c)};
  float out = -1;
  SumInOrder({&parts[0], &parts[1], &parts[2]}, type, 1, &out);
  return out;
}

TEST(OrderedSum, AddsInOrder) {
  // Next to the large value, the small one is lost in fp32, though both are exact in every type: only the
  // given order preserves it.
  const float big = 32768, small = 1.0f / (1 << 14);
  EXPECT_EQ(SumOfThree<float>(DType::kFp32, big, -big, small), small);
  EXPECT_EQ(SumOfThree<float>(DType::kFp32, small, big, -big), 0);
  EXPECT_EQ(SumOfThree<c10::BFloat16>(DType::kBf16, big, -big, small), small);
  EXPECT_EQ(SumOfThree<c10::BFloat16>(DType::kBf16, small, big, -big), 0);
  EXPECT_EQ(SumOfThree<c10::Half>(DType::kFp16, big, -big, small), small);
  EXPECT_EQ(SumOfThree<c10::Half>(DType::kFp16, small, big, -big), 0);
}

TEST(OrderedSum, SumsNarrowPartsInFp32) {
  EXPECT_EQ(SumOfThree<c10::BFloat16>(DType::kBf16, 256, 1, 0), 257);  // bf16 has 256 and 258.
  EXPECT_EQ(SumOfThree<c10::Half>(DType::kFp16, 2048, 1, 0), 2049);    // fp16 has 2048 and 2050.
  EXPECT_EQ(SumOfThree<c10::Half>(DType::kFp16, 65504, 65504, 65504), 3 * 65504);
}

TEST(AddSums, RoundsOnce) {
  const float sums[] = {1, 2};
  float wide[] = {1, 1};
  AddSums(sums, 2, DType::kFp32, wide);
  EXPECT_EQ(wide[1], 3);
  c10::BFloat16 bf16[] = {255.0f, 256.0f};
  AddSums(sums, 2, DType::kBf16, bf16);
  EXPECT_EQ(bf16[0], 256.0f);
  EXPECT_EQ(bf16[1], 258.0f);
  c10::Half fp16[] = {2048.0f, 2048.0f};
  AddSums(sums, 2, DType::kFp16, fp16);
  EXPECT_EQ(fp16[0], 2048.0f) << "2049 lies between two, and goes to the even one";
  EXPECT_EQ(fp16[1], 2050.0f);
}

TEST(OrderedSum, OutputMayBeAnyPart) {
  for (const size_t target : {0u, 1u, 2u}) {
    std::vector<std::vector<float>> parts(3, std::vector<float>(5000));
    for (int i = 0; i < 5000; ++i) {
      for (int p = 0; p < 3; ++p) parts[p][i] = i + p;
    }
    SumInOrder({parts[0].data(), parts[1].data(), parts[2].data()}, DType::kFp32, 5000, parts[target].data());
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(parts[target][i], 3 * i + 3);
  }
}

TEST(OrderedSum, PiecesCoverEveryElementOnce) {
  for (const int size : {1, 2, 3, 4, 8}) {
    for (const int64_t count : {0, 1, 2, 7, 8, 9, 1001}) {
      int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Piece piece = PieceOf(rank, size, count);
        EXPECT_EQ(piece.begin, next);
        EXPECT_GE(piece.count, 0);
        next += piece.count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace fsdpd
