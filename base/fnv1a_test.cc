#include "base/fnv1a.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// As its authors give them.
TEST(Fnv1a, IsThatOfEverybodyElse) {
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(Fnv1a("\xff"), 0xaf64724c8602eb6eu);
}

}  // namespace
}  // namespace fsdpd
