#include "base/dot_dot.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(DotDot, MatchesWholeComponents) {
  for (const char* path : {"..", "../x", "/a/../b", "/a/.."}) EXPECT_TRUE(HasDotDot(path)) << path;
  for (const char* path : {"", "/", "a..b", "/..a/b..", "./x", "/a/.../b"})
    EXPECT_FALSE(HasDotDot(path)) << path;
}

}  // namespace
}  // namespace fsdpd
