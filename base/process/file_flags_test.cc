#include "base/process/file_flags.h"

#include <gtest/gtest.h>

#include "base/errno_status.h"

namespace fsdpd {
namespace {

const std::vector<FileFlag> kFlags = {
    {"--tls-cert", "/a/cert"}, {"--tls-key", "/a/key"}, {"--audit-log", ""}};

TEST(FileFlags, WithFlagNamesTheFlag) {
  EXPECT_EQ(WithFlag(kFlags, ErrnoStatus("/a/key", ENOENT)),
            "--tls-key /a/key: No such file or directory [FILE_ERROR]");
  EXPECT_EQ(WithFlag(kFlags, absl::UnavailableError("the disk is full")), "the disk is full [UNAVAILABLE]");
  EXPECT_EQ(WithFlag(kFlags, absl::DataLossError("state store: damaged")),
            "state store: damaged [STATE_CORRUPT]");
  EXPECT_EQ(WithFlag(kFlags, absl::InvalidArgumentError("/a/key: expired [INVALID_CERTIFICATE]")),
            "--tls-key /a/key: expired [INVALID_CERTIFICATE]");
  EXPECT_EQ(WithFlag(kFlags, absl::InvalidArgumentError("/a/key: empty")),
            "--tls-key /a/key: empty [INVALID_FILE]");
  EXPECT_EQ(WithFlag(kFlags, absl::UnavailableError(": odd")), ": odd [UNAVAILABLE]");
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
