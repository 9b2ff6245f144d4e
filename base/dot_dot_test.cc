#include "base/dot_dot.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(DotDot, MatchesWholeComponents) {
  for (const char* path : {"..", "../x", "/a/../b", "/a/.."}) EXPECT_TRUE(HasDotDot(path)) << path;
  for (const char* path : {"", "/", "a..b", "/..a/b..", "./x", "/a/.../b"})
    EXPECT_FALSE(HasDotDot(path)) << path;
}

TEST(DotDot, ComparesWholeComponents) {
  for (const char* path : {"/a/b", "/a/b/c", "/a/b/c/d"}) EXPECT_TRUE(IsBelow(path, "/a/b")) << path;
  for (const char* path : {"/", "/a", "/a/bc", "/a/c/b", "a/b"}) EXPECT_FALSE(IsBelow(path, "/a/b")) << path;
  EXPECT_TRUE(IsBelow("/a", "/"));
}

}  // namespace
}  // namespace fsdpd
