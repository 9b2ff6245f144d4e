#include "coordinator/access/reader_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class ReaderStreamsTest : public ::testing::Test {
 protected:
  absl::Status Open(const std::string& person, ReaderKind kind, int count = 1) {
    for (; count > 0; --count) {
      open_.emplace_back(&streams_, person, kind);
      if (open_.back().status().ok()) continue;
      const absl::Status status = open_.back().status();
      open_.pop_back();
      return status;
    }
    return absl::OkStatus();
  }

  ReaderStreams streams_;
  std::list<ReaderStreams::Place> open_;
};

// Regression: one viewer filled all 512, and the errors of the others named no remedy.
TEST_F(ReaderStreamsTest, LimitsStreamsPerPrincipal) {
  ASSERT_TRUE(Open("vera", ReaderKind::kWatch, kMaxStreamsPerPrincipal).ok());
  const absl::Status refused = Open("vera", ReaderKind::kWatch);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(),
            "token of 'vera': too many open streams (got 129, want at most 128); follow many jobs by one "
            "WatchEvents (`fsdpctl events -w`)");
  EXPECT_TRUE(Open("sam", ReaderKind::kWatch).ok());
  open_.pop_front();
  EXPECT_TRUE(Open("vera", ReaderKind::kWatch).ok());
}

TEST_F(ReaderStreamsTest, LimitsLogReadersPerPrincipal) {
  ASSERT_TRUE(Open("vera", ReaderKind::kLogs, kMaxLogReadersPerPrincipal).ok());
  EXPECT_EQ(Open("vera", ReaderKind::kLogs).message(),
            "token of 'vera': too many open readers of logs, traces and steps (got 65, want at most 64); end "
            "some of them and retry");
  EXPECT_TRUE(Open("vera", ReaderKind::kWatch).ok());
  EXPECT_TRUE(Open("sam", ReaderKind::kLogs).ok());
  open_.pop_front();
  EXPECT_TRUE(Open("vera", ReaderKind::kLogs).ok());
}

TEST_F(ReaderStreamsTest, LimitsTotalWithoutTokens) {
  ASSERT_TRUE(Open("", ReaderKind::kLogs, kMaxReaderStreams).ok());
  EXPECT_THAT(std::string(Open("vera", ReaderKind::kWatch).message()),
              HasSubstr("want at most 512); retry when others have ended"));
  open_.clear();
  EXPECT_TRUE(Open("vera", ReaderKind::kWatch).ok());
}

}  // namespace
}  // namespace fsdpd
