#include "fsdp/checkpoint/format/directory_path.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(DirectoryPath, RemovesTrailingSlash) {
  EXPECT_EQ(WithoutSlash("/runs/7"), "/runs/7");
  EXPECT_EQ(WithoutSlash("/runs/7//"), "/runs/7");
  EXPECT_EQ(WithoutSlash("//"), "/");
  EXPECT_EQ(WithoutSlash(""), "");
}

TEST(DirectoryPath, NameIsLastComponent) {
  EXPECT_EQ(DirectoryName("/runs/7/"), "7");
  EXPECT_EQ(DirectoryName("7"), "7");
}

}  // namespace
}  // namespace fsdpd
