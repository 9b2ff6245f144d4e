#include "fsdp/rank/rank_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "base/check.h"
#include "base/rank/frame.h"

namespace fsdpd {
namespace {

// A channel on one end of a socket pair, and the agent's end.
class RankChannelTest : public ::testing::Test {
 protected:
  RankChannelTest() {
    int ends[2];
    FSDPD_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    agent_ = ends[0];
    channel_ = std::make_unique<RankChannel>(ends[1]);
  }
  ~RankChannelTest() override {
    channel_.reset();
    CloseAgent();
  }

  void CloseAgent() {
    if (agent_ >= 0) close(agent_);
    agent_ = -1;
  }
  void Start() {
    channel_->StartReading(
        [this](const absl::Status& status) { lost_.set_value(status); },
        [this](const v1::PeerFailed& peer) { failed_peer_.set_value(peer.rank()); },
        [this](const v1::LeaveOrder& order) { leave_.set_value(order.within_ms()); },
        [this](const v1::TraceOrder& order) { traced_step_.set_value(order.first_step()); });
  }
  v1::RankToAgent Received() {
    v1::RankToAgent message;
    FSDPD_CHECK_OK(ReadFrame(agent_, &message));
    return message;
  }
  void Answer(int64_t request, const std::string& value) {
    v1::AgentToRank message;
    message.mutable_store_value()->set_request(request);
    message.mutable_store_value()->set_value(value);
    FSDPD_CHECK_OK(WriteFrame(agent_, message));
  }

  int agent_ = -1;
  std::unique_ptr<RankChannel> channel_;
  std::promise<absl::Status> lost_;
  std::promise<int> failed_peer_;
  std::promise<int64_t> leave_;
  std::promise<int64_t> traced_step_;
};

TEST_F(RankChannelTest, ReadsLaunchFirst) {
  v1::AgentToRank message;
  message.mutable_launch()->set_rank(3);
  FSDPD_CHECK_OK(WriteFrame(agent_, message));
  const auto launch = channel_->ReadLaunch();
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->rank(), 3);
}

TEST_F(RankChannelTest, RejectsOtherFirstMessage) {
  Answer(1, "early");
  EXPECT_EQ(channel_->ReadLaunch().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RankChannelTest, SetSendsOneFrame) {
  ASSERT_TRUE(channel_->Set("key", std::string("a\0b", 3)).ok());
  const v1::RankToAgent message = Received();
  EXPECT_EQ(message.store_set().key(), "key");
  EXPECT_EQ(message.store_set().value(), std::string("a\0b", 3));
}

TEST_F(RankChannelTest, MatchesAnswersToRequests) {
  Start();
  auto first = std::async(std::launch::async, [&] { return *channel_->Get("one", absl::Seconds(30)); });
  const v1::RankToAgent one = Received();
  auto second = std::async(std::launch::async, [&] { return *channel_->Get("two", absl::Seconds(30)); });
  const v1::RankToAgent two = Received();
  EXPECT_EQ(one.store_get().key(), "one");
  Answer(two.store_get().request(), "2");
  EXPECT_EQ(second.get(), "2");
  Answer(one.store_get().request(), "1");
  EXPECT_EQ(first.get(), "1");
}

TEST_F(RankChannelTest, TimeoutNamesKey) {
  Start();
  const absl::Status status = channel_->Get("address/7", absl::Milliseconds(1)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("address/7"));
}

TEST_F(RankChannelTest, LostAgentEndsWaits) {
  Start();
  auto get = std::async(std::launch::async, [&] { return channel_->Get("key", absl::Seconds(30)).status(); });
  Received();
  CloseAgent();
  EXPECT_TRUE(absl::IsOutOfRange(lost_.get_future().get()));
  EXPECT_TRUE(absl::IsUnavailable(get.get()));
}

TEST_F(RankChannelTest, InvalidMessageCountsAsLostAgent) {
  Start();
  ASSERT_EQ(write(agent_, "\xff\xff\xff\xff", 4), 4);
  EXPECT_EQ(lost_.get_future().get().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RankChannelTest, ReportsFailedPeerAndContinues) {
  Start();
  v1::AgentToRank message;
  message.mutable_peer_failed()->set_rank(3);
  FSDPD_CHECK_OK(WriteFrame(agent_, message));
  EXPECT_EQ(failed_peer_.get_future().get(), 3);
  auto get = std::async(std::launch::async, [&] { return *channel_->Get("key", absl::Seconds(30)); });
  Answer(Received().store_get().request(), "value");
  EXPECT_EQ(get.get(), "value");
}

TEST_F(RankChannelTest, ReportsLeaveOrderAndContinues) {
  Start();
  v1::AgentToRank message;
  message.mutable_leave()->set_within_ms(4200);
  FSDPD_CHECK_OK(WriteFrame(agent_, message));
  EXPECT_EQ(leave_.get_future().get(), 4200);
  auto get = std::async(std::launch::async, [&] { return *channel_->Get("key", absl::Seconds(30)); });
  Answer(Received().store_get().request(), "value");
  EXPECT_EQ(get.get(), "value");
}

TEST_F(RankChannelTest, AgentMayCloseAfterClose) {
  Start();
  EXPECT_FALSE(channel_->closed());
  channel_->Close();
  EXPECT_TRUE(channel_->closed());
  CloseAgent();
  channel_.reset();  // Joins the reader.
  EXPECT_EQ(lost_.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

TEST_F(RankChannelTest, ReportsTraceOrder) {
  Start();
  v1::AgentToRank message;
  message.mutable_trace()->set_first_step(12);
  FSDPD_CHECK_OK(WriteFrame(agent_, message));
  EXPECT_EQ(traced_step_.get_future().get(), 12);
}

// Polling while the coordinator is away must not exhaust a rank's open requests.
TEST_F(RankChannelTest, RepeatedGetReusesRequest) {
  Start();
  EXPECT_EQ(channel_->Get("k", absl::ZeroDuration()).status().code(), absl::StatusCode::kDeadlineExceeded);
  const int64_t request = Received().store_get().request();
  EXPECT_EQ(channel_->Get("k", absl::ZeroDuration()).status().code(), absl::StatusCode::kDeadlineExceeded);
  Answer(request, "value");
  EXPECT_EQ(*channel_->Get("k", absl::InfiniteDuration()), "value");
  ASSERT_TRUE(channel_->Set("next", "").ok());
  EXPECT_TRUE(Received().has_store_set()) << "nothing was asked in between";
}

}  // namespace
}  // namespace fsdpd
