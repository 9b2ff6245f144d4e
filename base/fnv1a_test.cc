#include "base/fnv1a.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// Test vectors of the authors.
TEST(Fnv1a, MatchesTestVectors) {
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(Fnv1a("\xff"), 0xaf64724c8602eb6eu);
}

}  // namespace
}  // namespace fsdpd
