#include "base/errno_status.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace fsdpd {
namespace {

TEST(ErrnoStatus, DistinguishesNotFoundFromUnavailable) {
  ASSERT_EQ(open("/nowhere/at/all", O_RDONLY), -1);
  const absl::Status missing = ErrnoStatus("open /nowhere/at/all");
  EXPECT_EQ(missing, absl::NotFoundError("open /nowhere/at/all: No such file or directory"));
  EXPECT_EQ(ErrnoStatus("send", EPIPE), absl::UnavailableError("send: Broken pipe"));
  EXPECT_FALSE(IsDiskFull(ErrnoStatus("send", EPIPE)));
}

TEST(ErrnoStatus, NamesTheFileSizeLimit) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit = {700 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(ErrnoText("write /x", EFBIG),
            "write /x: File too large, as a file of this process may have 700.0 KiB (ulimit -f)");
  EXPECT_EQ(ErrnoText("write /x", ENOSPC), "write /x: No space left on device");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(ErrnoStatus, NamesTheDescriptorLimit) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const absl::Status status = ErrnoStatus("open /x", EMFILE);
  EXPECT_EQ(status.message(), absl::StrCat("open /x: Too many open files, of ", limit.rlim_cur,
                                           " that this process may have open (ulimit -n)"));
  EXPECT_TRUE(IsOutOfDescriptors(status));
  EXPECT_FALSE(IsOutOfDescriptors(ErrnoStatus("open /x", ENOSPC)));
}

TEST(ErrnoStatus, DetectsAFullDisk) {
  EXPECT_TRUE(IsDiskFull(ErrnoStatus("write /x", ENOSPC)));
  EXPECT_TRUE(IsDiskFull(ErrnoStatus("write /x", EDQUOT)));
  EXPECT_TRUE(IsDiskFull(ErrnoStatus("write /x", EFBIG)));  // RLIMIT_FSIZE.
  EXPECT_EQ(ErrnoStatus("write /x", ENOSPC).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(IsDiskFull(absl::UnavailableError("write /x: No space left on device")));
}

}  // namespace
}  // namespace fsdpd
