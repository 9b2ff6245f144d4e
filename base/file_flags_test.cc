#include "base/file_flags.h"

#include <gtest/gtest.h>

#include "base/errno_status.h"

namespace fsdpd {
namespace {

const std::vector<FileFlag> kFlags = {
    {"--tls-cert", "/a/cert"}, {"--tls-key", "/a/key"}, {"--audit-log", ""}};

TEST(FileFlags, WithFlagNamesTheFlag) {
  EXPECT_EQ(WithFlag(kFlags, ErrnoStatus("/a/key", ENOENT)), "--tls-key /a/key: No such file or directory");
  EXPECT_EQ(WithFlag(kFlags, absl::UnavailableError("the disk is full")), "UNAVAILABLE: the disk is full");
  EXPECT_EQ(WithFlag(kFlags, absl::UnavailableError(": odd")), "UNAVAILABLE: : odd");
}

TEST(FileFlags, DistinguishesWrongPathsFromTransientErrors) {
  for (const int wrong : {ENOENT, EACCES, ENOTDIR, EISDIR})
    EXPECT_TRUE(IsWrongPath(kFlags, ErrnoStatus("/a/cert", wrong))) << wrong;
  for (const int passes : {ENOSPC, EIO, EMFILE})
    EXPECT_FALSE(IsWrongPath(kFlags, ErrnoStatus("/a/cert", passes))) << passes;
  EXPECT_FALSE(IsWrongPath(kFlags, absl::InvalidArgumentError("/a/cert: the certificate has expired")));
  EXPECT_FALSE(IsWrongPath(kFlags, ErrnoStatus("/a/state", ENOENT))) << "no flag's";
}

}  // namespace
}  // namespace fsdpd
