#include "coordinator/agents/log_relay.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/api/log_readers.h"

namespace fsdpd {
namespace {

using Got = LogTail::Got;
using ::testing::HasSubstr;

class LogRelayTest : public ::testing::Test {
 protected:
  LogRelayTest() {
    for (const char* node : {"a", "b", "old"}) {
      v1::Register info;
      info.set_node(node);
      info.set_instance("i");
      info.set_device(v1::DEVICE_CPU);
      info.set_slots(1);
      info.set_log_windows(std::string(node) != "old");
      outboxes_[node] = nodes_.Attach(info, "peer", nullptr).value();
      v1::CoordinatorMessage welcome;
      outboxes_[node]->TryPop(&welcome);
    }
  }
  v1::ReadLogs Asked(const std::string& node) {
    v1::CoordinatorMessage message;
    EXPECT_TRUE(outboxes_.at(node)->TryPop(&message));
    asked_[message.read_logs().request()] = message.read_logs();
    return message.read_logs();
  }
  v1::LogLines Lines(int64_t request, const std::string& text, bool end = false) {
    v1::LogLines lines;
    lines.set_request(request);
    if (!text.empty()) AddLine(std::max(0, asked_[request].rank()), asked_[request].attempt(), text, &lines);
    lines.set_end(end);
    return lines;
  }
  static void AddLine(int rank, int attempt, const std::string& text, v1::LogLines* lines) {
    v1::LogLines::Line* line = lines->add_lines();
    line->set_rank(rank);
    line->set_attempt(attempt);
    line->set_line(text);
  }
  std::vector<std::string> TakeAll(const std::shared_ptr<LogTail>& tail, Got* last) {
    std::vector<std::string> texts;
    std::deque<v1::LogLines::Line> lines;
    while ((*last = tail->Next(absl::ZeroDuration(), &lines)) == Got::kLines) {
      for (const auto& line : lines) texts.push_back(line.line());
    }
    return texts;
  }

  FakeClock clock_;
  NodeRegistry nodes_{1, &clock_};
  std::map<std::string, std::shared_ptr<StreamOutbox>> outboxes_;
  std::map<int64_t, v1::ReadLogs> asked_;
  static constexpr int64_t kWindow = 64 << 10;
  static constexpr int64_t kRoom = 256 << 10;
  LogRelay relay_{&nodes_, LogLimits{kWindow, kRoom}};
};

TEST_F(LogRelayTest, AsksNodeWithoutLogAgainUntilLastQuery) {
  const LogRequest request = {{"j", 1}, -1, true};
  const auto tail = relay_.Open(request, {"a"}, /*awaits_logs=*/true);
  Got last;
  const auto has_none = [&] {
    v1::LogLines end = Lines(Asked("a").request(), "", true);
    end.set_no_such_log(true);
    end.set_error("no log");
    relay_.Take("a", end);
    TakeAll(tail, &last);
  };
  has_none();
  EXPECT_EQ(last, Got::kNothingYet);
  relay_.RequestAgain(request, tail, /*last=*/false);
  has_none();
  EXPECT_EQ(last, Got::kNothingYet);
  relay_.RequestAgain(request, tail, /*last=*/true);
  has_none();
  EXPECT_EQ(last, Got::kEnd);
  EXPECT_EQ(tail->status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LogRelayTest, QueriesEveryNodeAndMergesUntilAllEnded) {
  const auto tail = relay_.Open({{"j", 2}, 1, true, 7}, {"a", "b"});
  const v1::ReadLogs a = Asked("a"), b = Asked("b");
  EXPECT_EQ(a.attempt(), 2);
  EXPECT_EQ(a.rank(), 1);
  EXPECT_TRUE(a.follow());
  EXPECT_EQ(a.tail_lines(), 7);
  EXPECT_NE(a.request(), b.request());
  Got last;
  relay_.Take("a", Lines(a.request(), "one", true));
  EXPECT_EQ(TakeAll(tail, &last), std::vector<std::string>{"one"});
  EXPECT_EQ(last, Got::kNothingYet);
  relay_.Take("b", Lines(b.request(), "two", true));
  EXPECT_EQ(TakeAll(tail, &last), std::vector<std::string>{"two"});
  EXPECT_EQ(last, Got::kEnd);
  EXPECT_TRUE(tail->status().ok());
}

TEST_F(LogRelayTest, RejectsAnswerFromOtherNode) {
  const auto tail = relay_.Open({{"j", 1}}, {"a"});
  const v1::ReadLogs a = Asked("a");
  relay_.Take("b", Lines(a.request(), "not mine", true));
  relay_.Take("a", Lines(a.request() + 100, "never asked", true));
  Got last;
  EXPECT_TRUE(TakeAll(tail, &last).empty());
  EXPECT_EQ(last, Got::kNothingYet);
}

// Regression: `fsdpctl logs` printed them as lines of rank 0, and of an attempt that never existed.
TEST_F(LogRelayTest, DropsLinesOfRanksOnOtherNodes) {
  LogRequest request = {{"j", 1}};
  for (const char* node : {"a", "b"}) {
    v1::Job::Placement& placement = request.placements.emplace_back();
    placement.set_node(node);
    placement.set_first_rank(2 * static_cast<int>(request.placements.size() - 1));
    placement.set_ranks(2);
  }
  const auto all = relay_.Open(request, {"b"});
  v1::LogLines lines = Lines(Asked("b").request(), "");
  for (const int rank : {0, 1, 2, 3, 4, 16000}) AddLine(rank, 1, absl::StrCat("rank ", rank), &lines);
  AddLine(2, 99, "attempt 99", &lines);
  EXPECT_EQ(relay_.Take("b", lines), 5);
  Got last;
  EXPECT_EQ(TakeAll(all, &last), (std::vector<std::string>{"rank 2", "rank 3"}));
  request.rank = 3;
  const auto one = relay_.Open(request, {"b"});
  lines.set_request(Asked("b").request());
  EXPECT_EQ(relay_.Take("b", lines), 6);
  EXPECT_EQ(TakeAll(one, &last), std::vector<std::string>{"rank 3"});
}

TEST_F(LogRelayTest, NamesDisconnectedNode) {
  const auto never = relay_.Open({{"j", 1}}, {"c"});
  Got last;
  TakeAll(never, &last);
  EXPECT_EQ(last, Got::kEnd);
  EXPECT_EQ(never->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(never->status().message()), HasSubstr("node c"));

  const auto left = relay_.Open({{"j", 1}}, {"a"});
  relay_.Take("a", Lines(Asked("a").request(), "last words"));
  relay_.NodeGone("a");
  EXPECT_EQ(TakeAll(left, &last), std::vector<std::string>{"last words"});
  EXPECT_EQ(last, Got::kEnd);
  EXPECT_EQ(left->status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(LogRelayTest, KeepsAgentErrorAndIsNotFoundOnlyWithoutLog) {
  for (const bool missing : {true, false}) {
    const auto tail = relay_.Open({{"j", 1}}, {"a"});
    v1::LogLines lines = Lines(Asked("a").request(), "", true);
    lines.set_error("cannot read it");
    lines.set_no_such_log(missing);
    relay_.Take("a", lines);
    EXPECT_EQ(tail->status().code(), missing ? absl::StatusCode::kNotFound : absl::StatusCode::kInternal);
    EXPECT_EQ(std::string(tail->status().message()), "node a: cannot read it");
  }
}

TEST_F(LogRelayTest, GrantsWindowOnlyForWrittenLines) {
  const auto tail = relay_.Open({{"j", 1}, -1, true}, {"a"});
  const v1::ReadLogs asked = Asked("a");
  EXPECT_EQ(asked.window_bytes(), kWindow);
  const std::string text(kWindow / 4 - LogLineCost(0), 'x');
  for (int line = 0; line < 4; ++line) relay_.Take("a", Lines(asked.request(), text));
  EXPECT_EQ(relay_.held_bytes(), kWindow);
  std::deque<v1::LogLines::Line> lines;
  ASSERT_EQ(tail->Next(absl::ZeroDuration(), &lines), Got::kLines);
  EXPECT_EQ(relay_.held_bytes(), kWindow) << "the reader still writes them";
  // A grant would be in the outbox before this message.
  v1::CoordinatorMessage marker;
  marker.mutable_locate();
  nodes_.Send("a", marker);
  v1::CoordinatorMessage next;
  ASSERT_TRUE(outboxes_.at("a")->TryPop(&next));
  EXPECT_TRUE(next.has_locate());
  ASSERT_EQ(tail->Next(absl::ZeroDuration(), &lines), Got::kNothingYet);
  ASSERT_TRUE(outboxes_.at("a")->TryPop(&next));
  EXPECT_EQ(next.log_grant().request(), asked.request());
  EXPECT_EQ(next.log_grant().bytes(), kWindow);
  EXPECT_EQ(relay_.held_bytes(), 0);
}

// An agent of an earlier release took a grant for a new request, which ended the log that it was sending.
TEST_F(LogRelayTest, SendsNoWindowOrGrantToOldAgent) {
  const auto tail = relay_.Open({{"j", 1}}, {"old"});
  const v1::ReadLogs asked = Asked("old");
  EXPECT_EQ(asked.window_bytes(), 0);
  const std::string text(kWindow / 4, 'x');
  Got last;
  size_t got = 0;
  for (int line = 0; line < 20; ++line) {
    relay_.Take("old", Lines(asked.request(), text));
    got += TakeAll(tail, &last).size();
    EXPECT_EQ(last, Got::kNothingYet);
  }
  EXPECT_EQ(got, 20u);
  v1::CoordinatorMessage marker, next;
  marker.mutable_locate();
  nodes_.Send("old", marker);
  ASSERT_TRUE(outboxes_.at("old")->TryPop(&next));
  EXPECT_TRUE(next.has_locate()) << next.ShortDebugString();
  relay_.Take("old", Lines(asked.request(), "", /*end=*/true));
  EXPECT_TRUE(TakeAll(tail, &last).empty());
  EXPECT_EQ(last, Got::kEnd);
  EXPECT_TRUE(tail->status().ok()) << tail->status();
}

TEST_F(LogRelayTest, SharesTailWindowAmongNodes) {
  const auto tail = relay_.Open({{"j", 1}}, {"a", "b"});
  EXPECT_EQ(Asked("a").window_bytes(), kWindow / 2);
  EXPECT_EQ(Asked("b").window_bytes(), kWindow / 2);
}

TEST_F(LogRelayTest, EndsTailThatExceedsTotalLimit) {
  const auto first = relay_.Open({{"j", 1}}, {"a"}), second = relay_.Open({{"j", 1}}, {"a"});
  const int64_t one = Asked("a").request(), two = Asked("a").request();
  const std::string text(1000 - LogLineCost(0), 'x');
  // An agent that does not support windows.
  for (int line = 0; line < kRoom / 1000 - 10; ++line) relay_.Take("a", Lines(one, text));
  for (int line = 0; line < 20; ++line) relay_.Take("a", Lines(two, text));
  EXPECT_LE(relay_.held_bytes(), kRoom);
  Got last;
  EXPECT_LT(TakeAll(second, &last).size(), 20u);
  EXPECT_EQ(last, Got::kEnd);
  EXPECT_EQ(second->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(TakeAll(first, &last).size(), static_cast<size_t>(kRoom / 1000 - 10));
  EXPECT_EQ(last, Got::kNothingYet);
  EXPECT_TRUE(first->status().ok());
  EXPECT_EQ(relay_.held_bytes(), 0);
}

TEST_F(LogRelayTest, ReleasesMemoryOfClosedReader) {
  {
    const auto tail = relay_.Open({{"j", 1}}, {"a"});
    relay_.Take("a", Lines(Asked("a").request(), "one"));
    std::deque<v1::LogLines::Line> lines;
    EXPECT_EQ(tail->Next(absl::ZeroDuration(), &lines), Got::kLines);
    relay_.Close(tail);
  }
  EXPECT_EQ(relay_.held_bytes(), 0);
}

// Regression: the agent rejected it, with an INTERNAL error.
TEST_F(LogRelayTest, RejectsReaderAboveNodeLimitUntilOneEnds) {
  std::vector<std::shared_ptr<LogTail>> tails;
  for (int reader = 0; reader < kMaxNodeReaders; ++reader) tails.push_back(relay_.Open({{"j", 1}}, {"a"}));
  const int64_t first = Asked("a").request();
  const auto refused = relay_.Open({{"j", 1}}, {"a", "b"});
  relay_.Take("b", Lines(Asked("b").request(), "b has room", /*end=*/true));
  Got last;
  EXPECT_EQ(TakeAll(refused, &last), std::vector<std::string>{"b has room"});
  EXPECT_EQ(last, Got::kEnd);
  EXPECT_EQ(refused->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused->status().message()), HasSubstr("node a: too many open readers"));
  relay_.Take("a", Lines(first, "", /*end=*/true));
  EXPECT_TRUE(relay_.Open({{"j", 1}}, {"a"})->status().ok());
  EXPECT_FALSE(relay_.Open({{"j", 1}}, {"a"})->status().ok());
  relay_.Close(tails.back());
  EXPECT_TRUE(relay_.Open({{"j", 1}}, {"a"})->status().ok());
  relay_.NodeGone("a");
  EXPECT_TRUE(relay_.Open({{"j", 1}}, {"a"})->status().ok());
}

TEST_F(LogRelayTest, CloseStopsAgentAndDropsTail) {
  const auto tail = relay_.Open({{"j", 1}, -1, true, 0}, {"a"});
  const int64_t request = Asked("a").request();
  relay_.Close(tail);
  const v1::ReadLogs stop = Asked("a");
  EXPECT_EQ(stop.request(), request);
  EXPECT_TRUE(stop.stop());
  relay_.Take("a", Lines(request, "late"));
  Got last;
  EXPECT_TRUE(TakeAll(tail, &last).empty());
}

}  // namespace
}  // namespace fsdpd
