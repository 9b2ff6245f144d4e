#include "fsdp/checkpoint/format/tensor_store.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(FileBegins, StartsNewFileBeforeLimit) {
  const auto cut = [](const std::vector<int64_t>& sizes) { return FileBegins(sizes, 10); };
  EXPECT_EQ(cut({5, 5, 1}), (std::vector<size_t>{0, 2}));
  EXPECT_EQ(cut({50, 1, 9}), (std::vector<size_t>{0, 1})) << "one that is too large is alone";
  EXPECT_EQ(cut({}), std::vector<size_t>{});
}

}  // namespace
}  // namespace fsdpd
