#include "coordinator/reconcile/node_presence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/clock.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NodePresenceTest : public ::testing::Test {
 protected:
  // Returns the generation of the stream.
  int64_t Attach(const std::string& node) {
    v1::Register info;
    info.set_node(node);
    info.set_instance("instance");
    info.set_device(v1::DEVICE_CPU);
    info.set_slots(1);
    outbox_ = nodes_.Attach(info, "test", nullptr).value();
    return outbox_->stream_generation();
  }
  void AdvanceAndRead(absl::Duration by) {
    clock_.Advance(by);
    presence_.BeginTick(clock_.Now());
    nodes_.EndSilentStreams(presence_.lease());
    presence_.Read();
  }

  FakeClock clock_;
  NodeRegistry nodes_{1, &clock_};
  NodePresence presence_{&nodes_, AgentLease(absl::Seconds(5), absl::Hours(1), clock_.Now())};
  std::shared_ptr<StreamOutbox> outbox_;
};

TEST_F(NodePresenceTest, ConnectedNodeHasReportedOnceItsRegistrationIsTaken) {
  const int64_t stream = Attach("a");
  EXPECT_EQ(presence_.Find("a"), nullptr) << "before Read()";
  presence_.Read();
  EXPECT_EQ(presence_.Of("a"), Presence::kConnected);
  EXPECT_FALSE(presence_.HasReported(*presence_.Find("a")));
  presence_.OnAttached("a", stream);
  EXPECT_TRUE(presence_.HasReported(*presence_.Find("a")));
  nodes_.Detach("a", stream);
  Attach("a");
  presence_.Read();
  EXPECT_FALSE(presence_.HasReported(*presence_.Find("a"))) << "by another stream";
}

TEST_F(NodePresenceTest, SilentNodeIsDisconnectedBeforeItIsLost) {
  AdvanceAndRead(absl::Seconds(6));
  nodes_.Detach("a", Attach("a"));
  presence_.Read();
  EXPECT_EQ(presence_.Of("a"), Presence::kDisconnected);
  AdvanceAndRead(absl::Seconds(60));
  EXPECT_EQ(presence_.Of("a"), Presence::kLost);
}

TEST_F(NodePresenceTest, UnknownNodeIsExpectedUntilAgentsHadTimeToReconnect) {
  EXPECT_EQ(presence_.Of("a"), Presence::kExpected);
  AdvanceAndRead(absl::Seconds(60));
  EXPECT_EQ(presence_.Of("a"), Presence::kLost);
}

TEST_F(NodePresenceTest, NamesNodesThatWereLostWithRanksOfAJob) {
  nodes_.Detach("a", Attach("a"));
  nodes_.AddUnconfirmed("a", "j", [](const std::string&) { return false; });
  presence_.Read();
  EXPECT_THAT(presence_.LostWithRanksOf("j"), ElementsAre("a"));
  EXPECT_THAT(presence_.LostWithRanksOf("k"), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
