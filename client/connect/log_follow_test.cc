#include "client/connect/log_follow.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "base/mutex.h"
#include "base/rank/log_gap.h"
#include "client/testing/scripted_api.h"

namespace fsdpd {
namespace {

class LogFollowTest : public testing::Test {
 protected:
  // The n-th call writes the first `ends[n]` lines of ranks 0 and 1. All calls but the last end with an
  // error.
  void Script(std::vector<int> ends) {
    server_.on_logs = [this, ends](const v1::TailLogsRequest& request, grpc::ServerContext*,
                                   grpc::ServerWriter<v1::TailLogsResponse>* writer) {
      size_t n = 0;
      {
        MutexLock lock(&mutex_);
        n = tails_.size();
        tails_.push_back(request.tail_lines());
      }
      if (n >= ends.size()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "away");
      for (int i = 0; i < ends[n]; ++i) {
        for (const int rank : {0, 1}) {
          v1::TailLogsResponse line;
          line.set_attempt(1);
          line.set_rank(rank);
          line.set_line(absl::StrCat(rank, ".", i));
          writer->Write(line);
        }
      }
      return n + 1 < ends.size() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping") : grpc::Status::OK;
    };
  }

  absl::Status Follow(int tail = 0, absl::Duration reconnect_for = absl::Seconds(30)) {
    CoordinatorClient client(server_.address(), {});
    v1::TailLogsRequest request;
    request.set_follow(true);
    request.set_tail_lines(tail);
    return FollowLogs(
        &client, request, {reconnect_for, absl::Milliseconds(10)}, &interrupt_,
        [&](const v1::TailLogsResponse& log) { absl::StrAppend(&text_, log.line(), " "); },
        [&](const std::string& words) {
          absl::StrAppend(&text_, words.substr(0, words.find(' ', 12)), " ");
        });
  }

  void SetUp() override { server_.Start(); }

  Interrupt interrupt_;
  std::string text_;
  Mutex mutex_;
  std::vector<int> tails_ ABSL_GUARDED_BY(mutex_);
  ScriptedApi server_;
};

TEST_F(LogFollowTest, ResumesWithoutDuplicateLines) {
  Script({2, 1, 3});
  EXPECT_TRUE(Follow().ok());
  EXPECT_EQ(text_, "0.0 1.0 0.1 1.1 connection lost connected again 0.2 1.2 ");
}

// On two connections, the agent sends a notice about lost lines between the first line and the second.
TEST_F(LogFollowTest, NoticeDoesNotHideLines) {
  server_.on_logs = [this](const v1::TailLogsRequest&, grpc::ServerContext*,
                           grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    int call = 0;
    {
      MutexLock lock(&mutex_);
      call = static_cast<int>(tails_.size());
      tails_.push_back(0);
    }
    const auto write = [&](const std::string& text, bool notice) {
      v1::TailLogsResponse line;
      line.set_attempt(1);
      line.set_line(text);
      line.set_notice(notice);
      writer->Write(line);
    };
    write("first", false);
    write("[lost]", true);
    if (call == 0) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping");
    write("second", false);
    return grpc::Status::OK;
  };
  EXPECT_TRUE(Follow().ok());
  EXPECT_EQ(text_, "first [lost] connection lost connected again second ");
}

// A log of six lines whose beginning is dropped between reads: first lines that were shown, then later ones.
TEST_F(LogFollowTest, GapNoticeCountsAsItsLines) {
  server_.on_logs = [this](const v1::TailLogsRequest&, grpc::ServerContext*,
                           grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    const std::vector<std::pair<int, int>> parts = {{0, 3}, {2, 4}, {5, 6}};  // Existing lines.
    size_t call = 0;
    {
      MutexLock lock(&mutex_);
      call = tails_.size();
      tails_.push_back(0);
    }
    v1::TailLogsResponse line;
    line.set_attempt(1);
    const auto [begin, end] = parts[std::min(call, parts.size() - 1)];
    if (begin > 0) {
      line.set_line(LogGapNotice(/*bytes=*/100, begin, /*max_bytes=*/1 << 20));
      line.set_notice(true);
      writer->Write(line);
      line.set_notice(false);
    }
    for (int i = begin; i < end; ++i) {
      line.set_line(absl::StrCat(i));
      writer->Write(line);
    }
    return call < 2 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping") : grpc::Status::OK;
  };
  EXPECT_TRUE(Follow().ok());
  EXPECT_EQ(text_, "0 1 2 connection lost connected again 3 connection lost " +
                       LogGapNotice(100, 5, 1 << 20) + " connected again 5 ");
}

TEST_F(LogFollowTest, ReportsMissingLinesAfterTail) {
  Script({1, 2});
  EXPECT_TRUE(Follow(/*tail=*/5).ok());
  EXPECT_EQ(text_, "0.0 1.0 connection lost connected again; 0.1 1.1 ");
  MutexLock lock(&mutex_);
  EXPECT_EQ(tails_, (std::vector<int>{5, 1}));
}

TEST_F(LogFollowTest, StopsWhenCoordinatorStaysUnreachable) {
  Script({});
  EXPECT_TRUE(absl::IsUnavailable(Follow(0, absl::Milliseconds(20))));
}

TEST_F(LogFollowTest, StopsWhenOneNodeStaysUnreachable) {
  Script(std::vector<int>(10000, 1));
  EXPECT_TRUE(absl::IsUnavailable(Follow(0, absl::Milliseconds(50))));
  EXPECT_EQ(text_, "0.0 1.0 connection lost ");
}

TEST_F(LogFollowTest, EndsWhenInterrupted) {
  Script({});
  interrupt_.Fire();
  EXPECT_TRUE(absl::IsCancelled(Follow()));
}

}  // namespace
}  // namespace fsdpd
