#include "coordinator/nodes/node_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/limits.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

const absl::Duration kLost = absl::Milliseconds(kAgentLostAfterMs + 1);

class NodeRegistryTest : public ::testing::Test {
 protected:
  static v1::Register Info(const std::string& node, const std::string& instance) {
    v1::Register info;
    info.set_node(node);
    info.set_instance(instance);
    info.set_device(v1::DEVICE_CPU);
    info.set_slots(2);
    return info;
  }
  absl::StatusOr<std::shared_ptr<StreamOutbox>> Attach(const v1::Register& info) {
    return registry_.Attach(info, "peer", [this] { ++ended_; });
  }

  void EndSilentStreams() {
    lease_.BeginTick(clock_.Now());
    registry_.EndSilentStreams(lease_);
  }

  std::vector<std::string> ForgetLost() {
    return registry_.ForgetLost(lease_, [this](const std::string& job) { return live_.count(job) == 0; });
  }
  void AddUnconfirmed(const std::string& node, const std::string& job) {
    registry_.AddUnconfirmed(node, job, [this](const std::string& id) { return live_.count(id) == 0; });
  }
  // Makes the node lost.
  void Lose(const std::string& name) {
    const auto outbox = Attach(Info(name, "i1"));
    ASSERT_TRUE(outbox.ok());
    registry_.Detach(name, (*outbox)->stream_generation());
  }

  std::set<std::string> live_;  // Jobs that have not ended.
  FakeClock clock_;
  NodeRegistry registry_{3, &clock_};
  AgentLease lease_{absl::ZeroDuration(), /*tick=*/absl::Hours(1), clock_.Now()};
  int ended_ = 0;
};

TEST_F(NodeRegistryTest, GenerationsIncreaseAcrossRestarts) {
  const auto outbox = Attach(Info("a", "i1"));
  ASSERT_TRUE(outbox.ok());
  EXPECT_GT((*outbox)->stream_generation(), int64_t{3} << 32);
  EXPECT_LT((*outbox)->stream_generation(), int64_t{4} << 32);
  v1::CoordinatorMessage message;
  ASSERT_TRUE((*outbox)->TryPop(&message));
  EXPECT_EQ(message.welcome().heartbeat_interval_ms(), kHeartbeatIntervalMs);
  EXPECT_TRUE(registry_.Snapshot()[0].connected);
}

TEST_F(NodeRegistryTest, AcceptsKubernetesAndDomainNodeNames) {
  EXPECT_TRUE(Attach(Info("ip-10-0-113-7.eu-west-1.compute.internal", "i1")).ok());
  const auto capitals = Attach(Info("DGX-01", "i1"));
  EXPECT_EQ(capitals.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(capitals.status().message()), HasSubstr("'DGX-01' may hold only lower-case"));
}

TEST_F(NodeRegistryTest, RejectsSecondLiveAgentOfName) {
  ASSERT_TRUE(Attach(Info("a", "i1")).ok());
  const auto second = Attach(Info("a", "i2"));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--node"));
  EXPECT_EQ(ended_, 0);
}

TEST_F(NodeRegistryTest, ReadIntoUpdatesToCurrentState) {
  std::map<std::string, NodeView> views;
  const auto expect_known = [&] {
    registry_.ReadInto(&views);
    const std::vector<NodeView> known = registry_.Snapshot();
    ASSERT_EQ(views.size(), known.size());
    auto it = views.begin();
    for (const NodeView& view : known) {
      const NodeView& read = (it++)->second;
      EXPECT_EQ(read.info.SerializeAsString(), view.info.SerializeAsString());
      EXPECT_EQ(read.stream_generation, view.stream_generation);
      EXPECT_EQ(read.connected, view.connected);
      EXPECT_EQ(read.left, view.left);
      EXPECT_EQ(read.awaited, view.awaited);
      EXPECT_EQ(read.last_seen, view.last_seen);
      EXPECT_EQ(read.free_slots, view.free_slots);
    }
  };
  for (const char* node : {"b", "d"}) ASSERT_TRUE(Attach(Info(node, "i1")).ok());
  expect_known();
  for (const char* node : {"a", "c", "e"}) ASSERT_TRUE(Attach(Info(node, "i1")).ok());
  registry_.SetFreeSlots({{"b", 1}});
  expect_known();
  v1::Register more = Info("c", "i1");
  more.set_slots(8);
  const auto again = Attach(more);
  ASSERT_TRUE(again.ok());
  expect_known();
  clock_.Advance(absl::Seconds(1));
  registry_.Touch("a", views.at("a").stream_generation);
  registry_.Detach("c", (*again)->stream_generation(), /*left=*/true);
  expect_known();
  for (absl::Duration passed; passed < kLostNodeRetention + kLost; passed += absl::Hours(1)) {
    clock_.Advance(absl::Hours(1));
    lease_.BeginTick(clock_.Now());
  }
  ASSERT_TRUE(Attach(Info("d", "i1")).ok());
  registry_.EndSilentStreams(lease_);
  EXPECT_EQ(ForgetLost().size(), 4u);
  expect_known();
  EXPECT_EQ(views.size(), 1u);
}

TEST_F(NodeRegistryTest, DisconnectedNodeIsAwaitedUntilLostUnlessItLeft) {
  const auto known = [&](const std::string& name) {
    for (const NodeView& view : registry_.Snapshot()) {
      if (view.info.node() == name) return view.awaited;
    }
    ADD_FAILURE() << name;
    return false;
  };
  const auto disconnected = Attach(Info("away", "i1")), leaves = Attach(Info("leaves", "i1"));
  NodeView before;
  before.info = Info("before", "i1");
  before.last_seen = clock_.Now() - absl::Hours(1);
  registry_.Restore(before);
  EXPECT_FALSE(known("away"));
  registry_.Detach("away", (*disconnected)->stream_generation());
  registry_.Detach("leaves", (*leaves)->stream_generation(), /*left=*/true);
  registry_.EndSilentStreams(lease_);
  EXPECT_TRUE(known("away"));
  EXPECT_TRUE(known("before")) << "known from the previous process: it still has time to reconnect";
  EXPECT_FALSE(known("leaves"));
  for (int seconds = 0; seconds < 60; ++seconds) {
    clock_.Advance(absl::Seconds(1));
    lease_.BeginTick(clock_.Now());
  }
  registry_.EndSilentStreams(lease_);
  EXPECT_FALSE(known("away"));
  EXPECT_FALSE(known("before"));
  ASSERT_TRUE(Attach(Info("away", "i1")).ok());
  EXPECT_FALSE(known("away"));
}

TEST_F(NodeRegistryTest, ReconnectReplacesOwnStream) {
  const auto first = Attach(Info("a", "i1"));
  const auto second = Attach(Info("a", "i1"));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(ended_, 1);
  EXPECT_GT((*second)->stream_generation(), (*first)->stream_generation());
  registry_.Detach("a", (*first)->stream_generation());  // The old stream ends late.
  EXPECT_TRUE(registry_.Snapshot()[0].connected);
}

TEST_F(NodeRegistryTest, DoesNotSendMessageOnNextStream) {
  v1::CoordinatorMessage message;
  message.mutable_launch()->set_resent(true);
  const int64_t before = (*Attach(Info("a", "i1")))->stream_generation();
  EXPECT_TRUE(registry_.Send("a", message, before));
  const int64_t after = (*Attach(Info("a", "i1")))->stream_generation();
  EXPECT_FALSE(registry_.Send("a", message, before));
  EXPECT_TRUE(registry_.Send("a", message, after));
  EXPECT_TRUE(registry_.Send("a", message)) << "on any current stream";
}

TEST_F(NodeRegistryTest, NameOfSilentOrGoneAgentIsReusable) {
  const auto first = Attach(Info("a", "i1"));
  clock_.Advance(kLost);
  EXPECT_EQ(Attach(Info("a", "i2")).status().code(), absl::StatusCode::kAlreadyExists)
      << "only the lease decides, and it was not evaluated yet";
  EndSilentStreams();
  EXPECT_TRUE(Attach(Info("a", "i2")).ok());
  const auto other = Attach(Info("b", "i1"));
  registry_.Detach("b", (*other)->stream_generation());
  EXPECT_TRUE(Attach(Info("b", "i2")).ok());
}

TEST_F(NodeRegistryTest, ListsRestoredNodeForOneDay) {
  NodeView view;
  view.info = Info("a", "");
  view.last_seen = clock_.Now() - absl::Hours(20);
  view.left = true;
  registry_.Restore(view);
  EXPECT_TRUE(registry_.Snapshot()[0].left);
  ASSERT_TRUE(Attach(Info("a", "i1")).ok());
  registry_.Restore(view);
  EXPECT_TRUE(registry_.Snapshot()[0].connected);
  view.info.set_node("b");
  registry_.Restore(view);
  lease_.BeginTick(clock_.Now());
  EXPECT_TRUE(ForgetLost().empty());
  clock_.Advance(absl::Hours(5));
  lease_.BeginTick(clock_.Now());
  EXPECT_EQ(ForgetLost(), std::vector<std::string>{"b"});
}

TEST_F(NodeRegistryTest, DistinguishesLeftFromDisconnected) {
  const auto first = Attach(Info("a", "i1"));
  registry_.Detach("a", (*first)->stream_generation());
  EXPECT_FALSE(registry_.Snapshot()[0].left);
  const auto second = Attach(Info("a", "i1"));
  registry_.Detach("a", (*second)->stream_generation(), /*left=*/true);
  EXPECT_TRUE(registry_.Snapshot()[0].left);
  ASSERT_TRUE(Attach(Info("a", "i2")).ok());
  EXPECT_FALSE(registry_.Snapshot()[0].left) << "it has reconnected";
}

TEST_F(NodeRegistryTest, EndsSilentStreamsOnly) {
  const auto a = Attach(Info("a", "i1"));
  const auto b = Attach(Info("b", "i1"));
  clock_.Advance(kLost);
  registry_.Touch("b", (*b)->stream_generation());
  EndSilentStreams();
  EXPECT_EQ(ended_, 1);
  EXPECT_FALSE(registry_.Send("a", v1::CoordinatorMessage()));
  EXPECT_TRUE(registry_.Send("b", v1::CoordinatorMessage()));
}

TEST_F(NodeRegistryTest, StaleStreamDoesNotKeepNodeAlive) {
  const auto first = Attach(Info("a", "i1"));
  Attach(Info("a", "i1")).IgnoreError();
  clock_.Advance(kLost);
  registry_.Touch("a", (*first)->stream_generation());
  EndSilentStreams();
  EXPECT_FALSE(registry_.Snapshot()[0].connected);
}

TEST_F(NodeRegistryTest, RejectsInvalidRegistrations) {
  v1::Register bad = Info("Not A Name", "i");
  EXPECT_EQ(Attach(bad).status().code(), absl::StatusCode::kInvalidArgument);
  bad = Info("a", "i");
  bad.set_slots(0);
  EXPECT_EQ(Attach(bad).status().code(), absl::StatusCode::kInvalidArgument);
  bad = Info("a", "");
  EXPECT_EQ(Attach(bad).status().code(), absl::StatusCode::kInvalidArgument);
  bad = Info("a", "i");
  bad.clear_device();
  EXPECT_EQ(Attach(bad).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(registry_.Snapshot().empty());
}

TEST_F(NodeRegistryTest, ForgetsLostNodeAfterOneDay) {
  const auto lost = Attach(Info("lost", "i1")), here = Attach(Info("here", "i1"));
  ASSERT_TRUE(lost.ok() && here.ok());
  registry_.Detach("lost", (*lost)->stream_generation());
  const auto forget = [&] {
    registry_.Touch("here", (*here)->stream_generation());
    lease_.BeginTick(clock_.Now());
    return ForgetLost();
  };
  EXPECT_TRUE(forget().empty()) << "it is disconnected, but not lost yet";
  for (int hour = 0; hour < 24; ++hour) {
    clock_.Advance(absl::Hours(1));
    EXPECT_TRUE(forget().empty());
  }
  EXPECT_EQ(registry_.Snapshot().size(), 2u);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(forget(), std::vector<std::string>{"lost"});
  ASSERT_EQ(registry_.Snapshot().size(), 1u);
  EXPECT_EQ(registry_.Snapshot()[0].info.node(), "here");
  EXPECT_TRUE(Attach(Info("lost", "i2")).ok());
}

TEST_F(NodeRegistryTest, KeepsRevokedCertificateUntilRegistration) {
  const auto serial = [&] { return registry_.Snapshot()[0].revoked_serial; };
  const auto first = Attach(Info("a", "i1"));
  ASSERT_TRUE(first.ok());
  registry_.SetRevoked("a", (*first)->stream_generation(), "5a0c");
  EXPECT_EQ(serial(), "5a0c") << "the certificate of its open stream";
  registry_.Detach("a", (*first)->stream_generation());
  EXPECT_EQ(serial(), "5a0c");
  const auto second = Attach(Info("a", "i1"));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(serial(), "");
  registry_.SetRevoked("a", 0, "5a0c");
  registry_.SetRevoked("a", (*first)->stream_generation(), "5a0c");
  EXPECT_EQ(serial(), "") << "another client has the revoked certificate";
  registry_.Detach("a", (*second)->stream_generation());
  registry_.SetRevoked("a", 0, "5a0c");
  registry_.SetRevoked("nobody", 0, "5a0c");
  EXPECT_EQ(serial(), "5a0c");
  EXPECT_EQ(registry_.Snapshot().size(), 1u);
}

TEST_F(NodeRegistryTest, ForgetsLongestLostNodesFirst) {
  for (size_t i = 0; i < kMaxLostNodes + 2; ++i) {
    Lose("n" + std::to_string(i));
    clock_.Advance(absl::Milliseconds(1));
  }
  clock_.Advance(kLost);
  lease_.BeginTick(clock_.Now());
  EXPECT_EQ(ForgetLost(), (std::vector<std::string>{"n0", "n1"}));
}

// Regression: after a day, or a thousand other lost nodes, its job became PAUSED although ranks might still
// train there.
TEST_F(NodeRegistryTest, KeepsLostNodeWithUnconfirmedRanks) {
  live_ = {"runs"};
  for (const char* name : {"with-live", "with-ended"}) Lose(name);
  for (const char* job : {"ended", "runs"}) AddUnconfirmed("with-live", job);
  AddUnconfirmed("with-ended", "ended");
  for (size_t i = 0; i < kMaxLostNodes; ++i) {
    clock_.Advance(absl::Milliseconds(1));
    Lose("n" + std::to_string(i));
  }
  clock_.Advance(kLost);
  lease_.BeginTick(clock_.Now());
  EXPECT_EQ(ForgetLost(), std::vector<std::string>{"with-ended"});
  clock_.Advance(kLostNodeRetention);
  lease_.BeginTick(clock_.Now());
  EXPECT_EQ(ForgetLost().size(), kMaxLostNodes);
  ASSERT_EQ(registry_.Snapshot().size(), 1u);
  EXPECT_EQ(registry_.Snapshot()[0].info.node(), "with-live");
  live_.clear();
  EXPECT_EQ(ForgetLost(), std::vector<std::string>{"with-live"});
}

TEST_F(NodeRegistryTest, KeepsUnconfirmedJobUntilItEnded) {
  Lose("a");
  const auto jobs = [&] { return registry_.Snapshot()[0].unconfirmed_jobs; };
  for (size_t i = 0; i < kMaxUnconfirmedJobs + 3; ++i) {
    const std::string job = "live-" + std::to_string(i);
    live_.insert(job);
    AddUnconfirmed("a", job);
  }
  EXPECT_EQ(jobs().size(), kMaxUnconfirmedJobs + 3);
  AddUnconfirmed("a", "ended");
  EXPECT_EQ(jobs().size(), kMaxUnconfirmedJobs + 3);
  EXPECT_EQ(jobs().back(), "live-18");
  live_.clear();
  AddUnconfirmed("a", "ended");
  EXPECT_EQ(jobs().size(), kMaxUnconfirmedJobs);
  EXPECT_EQ(jobs().front(), "live-4");
  EXPECT_EQ(jobs().back(), "ended");
}

}  // namespace
}  // namespace fsdpd
