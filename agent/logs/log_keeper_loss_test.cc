// Tests of logs that lose data: the bound of each log, and logs that are truncated or rewritten.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "agent/logs/log_bound.h"
#include "agent/testing/log_keeper_case.h"
#include "base/limits.h"
#include "base/rank/log_gap.h"

namespace fsdpd {
namespace {

using LogKeeperLossTest = LogKeeperCase;

// Limits each log to its newest MiB.
class BoundedLogKeeperTest : public testing::Test {
 protected:
  // Returns once the excess was dropped.
  void WriteAndAwaitDrop(int lines) {
    std::string text;
    for (int i = 0; i < lines; ++i) text += "line " + std::to_string(lines_++) + std::string(90, '.') + "\n";
    Write(log_, text);
    written_ += static_cast<int64_t>(text.size());
    while (FrontOf(keeper_.PathOf(kRank)).bytes < written_ - kBound) std::this_thread::yield();
  }
  // Number of lines that were delivered or reported as dropped; checks the position of each.
  int64_t Account(const std::string& delivered) {
    int64_t next = 0;
    std::istringstream text(delivered);
    for (std::string line; std::getline(text, line);) {
      if (line[1] == '!') {
        EXPECT_GT(LinesOfLogGap(line.substr(2)), 0) << line;
        next += LinesOfLogGap(line.substr(2));
      } else {
        // A line may be delivered incomplete if its end was dropped.
        if (line != "3:line") {
          EXPECT_EQ(line.substr(0, line.find('.')), "3:line " + std::to_string(next));
        }
        ++next;
      }
    }
    return next;
  }

  static constexpr int64_t kBound = 1 << 20;
  TempDir dir_;
  LogReader reader_;
  LogKeeper keeper_{dir_.path(), [this](v1::LogLines lines) { return reader_.Take(std::move(lines)); },
                    nullptr, nullptr, kBound};
  const UniqueFd log_ = keeper_.OpenForRank(kRank).value();
  int lines_ = 0;
  int64_t written_ = 0;
};

TEST_F(BoundedLogKeeperTest, NoticeOfDroppedDataPrecedesTheRest) {
  WriteAndAwaitDrop(40000);
  keeper_.RankEnded(kRank);
  keeper_.Read(Ask(3));
  const std::string text = reader_.AwaitEnd();
  EXPECT_EQ(text.substr(0, 2), "3!");
  EXPECT_EQ(std::count(text.begin(), text.end(), '!'), 1);
  EXPECT_EQ(Account(text), 40000);
}

TEST_F(BoundedLogKeeperTest, OvertakenFollowerGetsANoticeAndContinues) {
  keeper_.Read(Ask(3, /*follow=*/true));
  Write(log_, "line 0.\nline");
  reader_.AwaitText("3:line 0.");
  reader_.Hold(true, /*gone=*/false);
  Write(log_, " 1.\n");
  lines_ = 2;
  WriteAndAwaitDrop(40000);
  WriteAndAwaitDrop(20000);
  reader_.Hold(false, /*gone=*/false);
  keeper_.RankEnded(kRank);
  const std::string text = reader_.AwaitEnd();
  EXPECT_GE(std::count(text.begin(), text.end(), '!'), 1);
  EXPECT_EQ(Account(text), 60002);
}

TEST_F(BoundedLogKeeperTest, TailWithFewerLinesHasANotice) {
  WriteAndAwaitDrop(40000);
  keeper_.RankEnded(kRank);
  EXPECT_EQ(keeper_.Tail(kRank, 1), std::vector<std::string>{"line 39999" + std::string(90, '.')});
  v1::ReadLogs ask = Ask(3);
  ask.set_tail_lines(2);
  keeper_.Read(ask);
  const std::string few = reader_.AwaitEnd();
  EXPECT_EQ(std::count(few.begin(), few.end(), '\n'), 2) << few;
  EXPECT_EQ(few.find('!'), std::string::npos) << few;
  ask.set_tail_lines(30000);
  keeper_.Read(ask);
  const std::string all = reader_.AwaitEnds(2).substr(few.size());
  EXPECT_EQ(all.substr(0, 2), "3!");
  EXPECT_EQ(Account(all), 40000);
}

TEST_F(BoundedLogKeeperTest, TruncatedLogAfterADropHasATail) {
  WriteAndAwaitDrop(40000);
  ASSERT_EQ(ftruncate(log_.get(), 0), 0);
  EXPECT_TRUE(keeper_.Tail(kRank, 40).empty());
  Write(log_, "after\n");
  EXPECT_EQ(keeper_.Tail(kRank, 40), std::vector<std::string>{"after"});
  keeper_.RankEnded(kRank);
  keeper_.Read(Ask(3));
  EXPECT_EQ(reader_.AwaitEnd(), "3:after\n");
}

TEST_F(BoundedLogKeeperTest, FollowContinuesAfterTruncation) {
  keeper_.Read(Ask(3, /*follow=*/true));
  WriteAndAwaitDrop(40000);
  reader_.AwaitText("line 39999");
  ASSERT_EQ(ftruncate(log_.get(), 0), 0);
  reader_.AwaitText("3![fsdpd-agent: the log was truncated here]");
  Write(log_, "after\n");
  reader_.AwaitText("3:after");
  keeper_.RankEnded(kRank);
  reader_.AwaitEnd();
}

// Regression: the first line and a half were delivered again, the half one joined with the next line.
TEST_F(LogKeeperLossTest, FollowOfAPartlyTruncatedLogGetsNewContent) {
  const UniqueFd log = Open(kRank);
  keeper_.Read(Ask(3, /*follow=*/true));
  Write(log, "one\ntwo\nthree\n");
  reader_.AwaitText("three\n");
  ASSERT_EQ(ftruncate(log.get(), 6), 0);
  reader_.AwaitText("truncated here]\n");
  Write(log, "after\n");
  keeper_.RankEnded(kRank);
  EXPECT_EQ(reader_.AwaitEnd(),
            "3:one\n3:two\n3:three\n3![fsdpd-agent: the log was truncated here]\n3:after\n");
}

// Regression: no notice was sent, and then the rest of a line from the middle.
TEST_F(LogKeeperLossTest, FollowDetectsTruncationOfALogThatGrewAgain) {
  const UniqueFd log = Open(kRank);
  Write(log, "one\ntwo\nthree\n");
  v1::ReadLogs ask = Ask(3, /*follow=*/true);
  ask.set_window_bytes(LogLineCost(3) + LogLineCost(3) + 1);  // Used up by the third line.
  keeper_.Read(ask);
  reader_.AwaitText("three\n");
  ASSERT_EQ(ftruncate(log.get(), 6), 0);
  Write(log, "o\nthis is longer than what was there\n");
  keeper_.RankEnded(kRank);
  v1::LogGrant grant;
  grant.set_request(ask.request());
  grant.set_bytes(1 << 20);
  keeper_.Grant(grant);
  EXPECT_EQ(reader_.AwaitEnd(),
            "3:one\n3:two\n3:three\n3![fsdpd-agent: the log was truncated here]\n"
            "3:this is longer than what was there\n");
}

// Grew to its earlier size again, up to the same place in a line.
TEST_F(LogKeeperLossTest, RewrittenLogIsReadFromItsBeginning) {
  const UniqueFd log = Open(kRank);
  keeper_.Read(Ask(3, /*follow=*/true));
  Write(log, "one\ntwo\n");
  reader_.AwaitText("two\n");
  ASSERT_EQ(ftruncate(log.get(), 0), 0);
  reader_.AwaitText("truncated here]\n");
  Write(log, "one more\n");
  keeper_.RankEnded(kRank);
  EXPECT_EQ(reader_.AwaitEnd(), "3:one\n3:two\n3![fsdpd-agent: the log was truncated here]\n3:one more\n");
}

}  // namespace
}  // namespace fsdpd
