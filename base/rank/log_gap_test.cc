#include "base/rank/log_gap.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(LogGap, NoticeHasSizeAndReason) {
  EXPECT_EQ(
      LogGapNotice(1000, 7, 256 << 20),
      "[fsdpd-agent: 7 lines (1000 bytes) are gone here: of a rank's log the newest 256.0 MiB are kept]");
  EXPECT_EQ(LogGapNotice(1000, -1, 1 << 20),
            "[fsdpd-agent: lines (1000 bytes) are gone here: of a rank's log the newest 1.00 MiB are kept]");
}

TEST(LogGap, ParsesNumberOfLines) {
  EXPECT_EQ(LinesOfLogGap(LogGapNotice(1000, 7, 1 << 20)), 7);
  EXPECT_EQ(LinesOfLogGap(LogGapNotice(1000, -1, 1 << 20)), 0);
  for (const char* other :
       {"", "[fsdpd-agent: the log cannot be read: gone]", "7 lines (1000 bytes) are gone",
        "[fsdpd-agent: 7]", "[fsdpd-agent: x lines (1000 bytes) are gone here]"}) {
    EXPECT_EQ(LinesOfLogGap(other), 0) << other;
  }
}

}  // namespace
}  // namespace fsdpd
