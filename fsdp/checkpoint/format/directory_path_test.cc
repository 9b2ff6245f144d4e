#include "fsdp/checkpoint/format/directory_path.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

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

TEST(DirectoryPath, SeparatesPathErrorsFromDiskErrors) {
  EXPECT_EQ(DirectoryError("make /proc/x", ENOENT).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DirectoryError("list /etc/hostname/x", ENOTDIR).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(DirectoryError("list /etc/hostname/x", ENOTDIR).message(),
              HasSubstr("list /etc/hostname/x: Not a directory; write the path of a directory"));
  EXPECT_EQ(DirectoryError("make /data/x", EACCES).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(DirectoryError("make /mnt/x", EIO).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DirectoryError("make /mnt/x", ENOSPC).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fsdpd
