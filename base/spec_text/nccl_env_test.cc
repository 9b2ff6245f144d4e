#include "base/spec_text/nccl_env.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsdpd {
namespace {

TEST(NcclEnv, NamesAreSortedAndUnique) {
  const auto names = NcclEnvNames();
  ASSERT_GT(names.size(), 150u);
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end(), [](auto a, auto b) { return a >= b; }),
            names.end());
}

}  // namespace
}  // namespace fsdpd
