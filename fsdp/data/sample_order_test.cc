#include "fsdp/data/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Ranges = std::vector<SampleRange>;

std::vector<int64_t> Order(const Ranges& skipped_samples, int64_t origin, int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(SampleNumber(skipped_samples, origin, i));
  return numbers;
}

TEST(SampleOrder, IsIdentityWithoutSkippedSamples) {
  EXPECT_THAT(Order({}, 0, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Order({}, 5, 3), ElementsAre(5, 6, 7));
}

TEST(SampleOrder, ExcludesSkippedSamples) {
  const Ranges ranges = {{2, 4}, {5, 8}};
  EXPECT_THAT(Order(ranges, 0, 6), ElementsAre(0, 1, 4, 8, 9, 10));
  EXPECT_THAT(Order(ranges, 3, 3), ElementsAre(4, 8, 9)) << "from within a range";
  EXPECT_THAT(Order(ranges, 8, 2), ElementsAre(8, 9)) << "from behind all of them";
}

TEST(SampleOrder, MergesAdjacentRanges) {
  EXPECT_THAT(Merged({{5, 8}, {0, 2}, {2, 3}, {7, 7}, {6, 7}}),
              ElementsAre(SampleRange{0, 3}, SampleRange{5, 8}));
  EXPECT_THAT(Merged({{4, 4}, {9, 3}}), IsEmpty());
}

// A run that stops anywhere and resumes from its single number takes the same samples as one without
// interruption.
TEST(SampleOrder, ResumesAnywhere) {
  int64_t state = 7;
  const auto next = [&state] { return (state = (state * 48271) % 2147483647) / 16; };
  for (int round = 0; round < 200; ++round) {
    Ranges ranges;
    for (int i = 0; i < 5; ++i) {
      const int64_t first = next() % 60;
      ranges.push_back({first, first + next() % 12});
    }
    ranges = Merged(ranges);
    std::vector<int64_t> whole;  // By definition.
    for (int64_t n = 0; n < 100; ++n) {
      bool passed = false;
      for (const SampleRange& range : ranges) passed = passed || (range.first <= n && n < range.end);
      if (!passed) whole.push_back(n);
    }
    std::vector<int64_t> parts;
    int64_t position = 0;
    while (parts.size() < 35) {
      const std::vector<int64_t> part = Order(ranges, position, 1 + next() % 7);
      parts.insert(parts.end(), part.begin(), part.end());
      position = part.back() + 1;
    }
    parts.resize(35);
    whole.resize(35);
    ASSERT_EQ(parts, whole);
  }
}

}  // namespace
}  // namespace fsdpd
