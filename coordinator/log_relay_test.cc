#include "coordinator/log_relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using Got = LogTail::Got;
using ::testing::HasSubstr;

class LogRelayTest : public ::testing::Test {
 protected:
  LogRelayTest() {
    for (const char* node : {"a", "b"}) {
      v1::Register info;
      info.set_node(node);
      info.set_instance("i");
      info.set_device(v1::DEVICE_CPU);
      info.set_slots(1);
      outboxes_[node] = nodes_.Attach(info, "peer", nullptr).value();
      v1::CoordinatorMessage welcome;
      outboxes_[node]->Pop(&welcome);
    }
  }
  v1::ReadLogs Asked(const std::string& node) {
    v1::CoordinatorMessage message;
    EXPECT_TRUE(outboxes_.at(node)->Pop(&message));
    return message.read_logs();
  }
  static v1::LogLines Lines(int64_t request, const std::string& text, bool end = false) {
    v1::LogLines lines;
    lines.set_request(request);
    if (!text.empty()) lines.add_lines()->set_line(text);
    lines.set_end(end);
    return lines;
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
  LogRelay relay_{&nodes_, LogLimits{4096, absl::ZeroDuration()}};
};

TEST_F(LogRelayTest, AsksEveryNodeAndMergesUntilAllEnded) {
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

TEST_F(LogRelayTest, ANodeCannotAnswerForAnother) {
  const auto tail = relay_.Open({{"j", 1}}, {"a"});
  const v1::ReadLogs a = Asked("a");
  relay_.Take("b", Lines(a.request(), "not mine", true));
  relay_.Take("a", Lines(a.request() + 100, "never asked", true));
  Got last;
  EXPECT_TRUE(TakeAll(tail, &last).empty());
  EXPECT_EQ(last, Got::kNothingYet);
}

TEST_F(LogRelayTest, SaysWhichNodeIsNotThere) {
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

TEST_F(LogRelayTest, AnAgentsErrorIsNotFoundWithItsWords) {
  const auto tail = relay_.Open({{"j", 1}}, {"a"});
  v1::LogLines lines = Lines(Asked("a").request(), "", true);
  lines.set_error("no log of rank 0");
  relay_.Take("a", lines);
  EXPECT_EQ(tail->status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(tail->status().message()), HasSubstr("no log of rank 0"));
}

TEST_F(LogRelayTest, AReaderThatIsTooSlowIsEndedAndTheAgentGoesOn) {
  const auto tail = relay_.Open({{"j", 1}}, {"a"});
  const int64_t request = Asked("a").request();
  for (int i = 0; i < 100; ++i) relay_.Take("a", Lines(request, std::string(100, 'x')));
  Got last;
  const auto lines = TakeAll(tail, &last);
  EXPECT_LT(lines.size(), 100u);
  EXPECT_EQ(last, Got::kEnd);
  EXPECT_EQ(tail->status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LogRelayTest, CloseTellsTheAgentAndForgetsTheTail) {
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
