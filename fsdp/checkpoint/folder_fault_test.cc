#include "fsdp/checkpoint/folder_fault.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(FolderFault, OfThePathSaysWhatToWriteAndOfADiskWhatItSaid) {
  EXPECT_EQ(FolderFault("make /proc/x", ENOENT).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FolderFault("list /etc/hostname/x", ENOTDIR).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(FolderFault("list /etc/hostname/x", ENOTDIR).message(),
              HasSubstr("list /etc/hostname/x: Not a directory: write the path of a folder"));
  EXPECT_EQ(FolderFault("make /data/x", EACCES).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(FolderFault("make /mnt/x", EIO).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FolderFault("make /mnt/x", ENOSPC).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fsdpd
