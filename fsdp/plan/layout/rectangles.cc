#include "fsdp/plan/layout/rectangles.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

int64_t Product(std::vector<int64_t>::const_iterator begin, std::vector<int64_t>::const_iterator end) {
  return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
}

class Cutter {
 public:
  explicit Cutter(const std::vector<int64_t>& shape) : shape_(shape) {}

  // Emits elements [begin, end) of the subarray in which the dimensions before `depth` are fixed at `fixed`.
  void Cut(size_t depth, int64_t begin, int64_t end, const std::vector<int64_t>& fixed) {
    if (begin == end) return;
    if (depth == shape_.size()) return Emit(fixed, {});
    const int64_t row = Product(shape_.begin() + static_cast<int64_t>(depth) + 1, shape_.end());
    const int64_t first_whole = (begin + row - 1) / row, last_whole = end / row;
    if (first_whole > last_whole) return CutRow(depth, begin / row, begin % row, end % row, fixed);
    if (begin % row != 0) CutRow(depth, begin / row, begin % row, row, fixed);
    if (first_whole < last_whole) {
      std::vector<int64_t> at = fixed;
      at.push_back(first_whole);
      Emit(at, {last_whole - first_whole});
    }
    if (end % row != 0) CutRow(depth, last_whole, 0, end % row, fixed);
  }

  std::vector<Rectangle> Take() { return std::move(rectangles_); }

 private:
  void CutRow(size_t depth, int64_t row, int64_t begin, int64_t end, std::vector<int64_t> fixed) {
    fixed.push_back(row);
    Cut(depth + 1, begin, end, fixed);
  }

  // A rectangle at offsets `at`: size `last` in the last given dimension, full size in those after it.
  void Emit(const std::vector<int64_t>& at, const std::vector<int64_t>& last) {
    Rectangle rectangle{at, std::vector<int64_t>(at.size(), 1)};
    if (!last.empty()) rectangle.sizes.back() = last.front();
    for (size_t d = at.size(); d < shape_.size(); ++d) {
      rectangle.offsets.push_back(0);
      rectangle.sizes.push_back(shape_[d]);
    }
    rectangles_.push_back(std::move(rectangle));
  }

  const std::vector<int64_t>& shape_;
  std::vector<Rectangle> rectangles_;
};

}  // namespace

int64_t Rectangle::elements() const { return Product(sizes.begin(), sizes.end()); }

std::vector<Rectangle> RectanglesOf(const std::vector<int64_t>& shape, int64_t begin, int64_t elements) {
  FSDPD_CHECK(begin >= 0 && elements >= 0 && begin + elements <= Product(shape.begin(), shape.end()));
  Cutter cutter(shape);
  cutter.Cut(0, begin, begin + elements, {});
  return cutter.Take();
}

}  // namespace fsdpd
