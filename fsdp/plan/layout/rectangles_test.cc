#include "fsdp/plan/layout/rectangles.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// The flat numbers of a rectangle's elements, in row-major order.
void AppendElements(const std::vector<int64_t>& shape, const Rectangle& rectangle, size_t depth, int64_t flat,
                    std::vector<int64_t>* out) {
  if (depth == shape.size()) {
    out->push_back(flat);
    return;
  }
  for (int64_t i = 0; i < rectangle.sizes[depth]; ++i) {
    AppendElements(shape, rectangle, depth + 1, flat * shape[depth] + rectangle.offsets[depth] + i, out);
  }
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

TEST(Rectangles, CoversEveryRangeInOrder) {
  const std::vector<std::vector<int64_t>> shapes = {
      {},        {1},       {7},       {1, 1},       {4, 5},    {5, 1},         {1, 5},
      {2, 3, 4}, {3, 1, 4}, {1, 3, 1}, {2, 2, 3, 2}, {4, 3, 0}, {2, 1, 3, 2, 2}};
  for (const std::vector<int64_t>& shape : shapes) {
    const int64_t all = Elements(shape);
    for (int64_t begin = 0; begin <= all; ++begin) {
      for (int64_t elements = 0; begin + elements <= all; ++elements) {
        const std::vector<Rectangle> rectangles = RectanglesOf(shape, begin, elements);
        std::vector<int64_t> covered, wanted;
        for (const Rectangle& rectangle : rectangles) {
          ASSERT_EQ(rectangle.offsets.size(), shape.size());
          ASSERT_EQ(rectangle.sizes.size(), shape.size());
          const size_t before = covered.size();
          AppendElements(shape, rectangle, 0, 0, &covered);
          EXPECT_EQ(rectangle.elements(), static_cast<int64_t>(covered.size() - before));
          EXPECT_GT(rectangle.elements(), 0);
        }
        for (int64_t i = 0; i < elements; ++i) wanted.push_back(begin + i);
        ASSERT_EQ(covered, wanted) << "range " << begin << " + " << elements << " of " << shape.size()
                                   << " dimensions";
        EXPECT_LE(rectangles.size(), shape.empty() ? 1 : 2 * shape.size() - 1);
      }
    }
  }
}

TEST(Rectangles, SplitsMatrixRangeIntoThreeRectangles) {
  const std::vector<Rectangle> rectangles = RectanglesOf({10, 4}, 6, 13);
  ASSERT_EQ(rectangles.size(), 3u);
  EXPECT_EQ(rectangles[0].offsets, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(rectangles[0].sizes, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(rectangles[1].offsets, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(rectangles[1].sizes, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(rectangles[2].offsets, (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(rectangles[2].sizes, (std::vector<int64_t>{1, 3}));
}

TEST(Rectangles, WholeRowsAreOneRectangle) {
  EXPECT_EQ(RectanglesOf({10, 4}, 0, 40).size(), 1u);
  EXPECT_EQ(RectanglesOf({10, 4}, 8, 20).size(), 1u);
  EXPECT_EQ(RectanglesOf({10, 4, 3}, 12, 24).size(), 1u);
}

TEST(Rectangles, ScalarIsOneRectangle) {
  const std::vector<Rectangle> rectangles = RectanglesOf({}, 0, 1);
  ASSERT_EQ(rectangles.size(), 1u);
  EXPECT_TRUE(rectangles[0].sizes.empty());
  EXPECT_EQ(rectangles[0].elements(), 1);
}

TEST(RectanglesDeathTest, RejectsRangeBeyondParameter) { EXPECT_DEATH(RectanglesOf({2, 3}, 4, 3), "begin"); }

}  // namespace
}  // namespace fsdpd
