#include "base/process/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace fsdpd {
namespace {

TEST(OpenFiles, RaisesToTheHardLimit) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = 64;
  limit.rlim_max = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(RaiseOpenFiles(), 256);
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, 256u);
  EXPECT_EQ(RaiseOpenFiles(), 256) << "it is so already";
}

}  // namespace
}  // namespace fsdpd
