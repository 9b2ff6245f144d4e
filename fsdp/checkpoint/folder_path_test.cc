#include "fsdp/checkpoint/folder_path.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(FolderPath, ASlashAtTheEndIsNoPartOfIt) {
  EXPECT_EQ(WithoutSlash("/runs/7"), "/runs/7");
  EXPECT_EQ(WithoutSlash("/runs/7//"), "/runs/7");
  EXPECT_EQ(WithoutSlash("//"), "/");
  EXPECT_EQ(WithoutSlash(""), "");
}

TEST(FolderPath, TheNameIsItsLastWord) {
  EXPECT_EQ(FolderName("/runs/7/"), "7");
  EXPECT_EQ(FolderName("7"), "7");
}

}  // namespace
}  // namespace fsdpd
