#include "fsdp/checkpoint/directory_fault.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(DirectoryFault, SeparatesPathErrorsFromDiskErrors) {
  EXPECT_EQ(DirectoryFault("make /proc/x", ENOENT).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DirectoryFault("list /etc/hostname/x", ENOTDIR).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(DirectoryFault("list /etc/hostname/x", ENOTDIR).message(),
              HasSubstr("list /etc/hostname/x: Not a directory: write the path of a directory"));
  EXPECT_EQ(DirectoryFault("make /data/x", EACCES).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(DirectoryFault("make /mnt/x", EIO).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DirectoryFault("make /mnt/x", ENOSPC).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fsdpd
