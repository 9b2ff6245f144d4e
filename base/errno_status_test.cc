#include "base/errno_status.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(ErrnoStatus, TellsWhatIsNotThereFromWhatCannotBeDone) {
  ASSERT_EQ(open("/nowhere/at/all", O_RDONLY), -1);
  const absl::Status missing = ErrnoStatus("open /nowhere/at/all");
  EXPECT_EQ(missing, absl::NotFoundError("open /nowhere/at/all: No such file or directory"));
  EXPECT_EQ(ErrnoStatus("send", EPIPE), absl::UnavailableError("send: Broken pipe"));
  EXPECT_FALSE(IsDiskFull(ErrnoStatus("send", EPIPE)));
}

TEST(ErrnoStatus, KnowsAFullDiskByMoreThanItsWords) {
  EXPECT_TRUE(IsDiskFull(ErrnoStatus("write /x", ENOSPC)));
  EXPECT_TRUE(IsDiskFull(ErrnoStatus("write /x", EDQUOT)));
  EXPECT_TRUE(IsDiskFull(ErrnoStatus("write /x", EFBIG)));  // A limit of one file.
  EXPECT_EQ(ErrnoStatus("write /x", ENOSPC).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(IsDiskFull(absl::UnavailableError("write /x: No space left on device")));
}

}  // namespace
}  // namespace fsdpd
