#include "coordinator/nodes/preflights.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::Register Node(int slots = 8, v1::Device device = v1::DEVICE_CUDA) {
  v1::Register info;
  info.set_node("n");
  info.set_device(device);
  info.set_slots(slots);
  return info;
}

v1::NodePreflight ResultAt(absl::Time time) {
  v1::NodePreflight preflight;
  preflight.set_unix_nanos(absl::ToUnixNanos(time));
  preflight.set_device(v1::DEVICE_CUDA);
  preflight.set_slots(8);
  return preflight;
}

const absl::Time kNow = absl::FromUnixSeconds(1'790'000'000);

TEST(Preflights, BoundsResultOfAgent) {
  v1::PreflightResult result;
  result.set_error(std::string(100'000, 'e'));
  for (int i = 0; i < 8; ++i) {
    v1::PreflightDevice* const device = result.add_devices();
    device->set_device(i);
    for (int pair = 0; pair < 7; ++pair) device->add_pairs()->set_bytes_per_second(1e9);
  }
  const v1::PreflightResult usual = CutToBounds(result);
  EXPECT_LE(usual.error().size(), 4096u);
  EXPECT_EQ(usual.devices(7).pairs_size(), 7);
  for (int pair = 0; pair < 100'000; ++pair)
    result.mutable_devices(0)->add_pairs()->set_bytes_per_second(1e9);
  const v1::PreflightResult many_pairs = CutToBounds(result);
  EXPECT_EQ(many_pairs.devices_size(), 8);
  EXPECT_EQ(many_pairs.devices(0).pairs_size(), 0);
  result.mutable_devices(0)->set_name(std::string(1'000'000, 'n'));
  const v1::PreflightResult long_name = CutToBounds(result);
  EXPECT_LE(long_name.ByteSizeLong(), 256u << 10);
  EXPECT_FALSE(long_name.error().empty());
}

// Regression: every tick copied the results of all nodes to compare them.
TEST(Preflights, VersionChangesWithTimeAndAcceptance) {
  Preflights preflights;
  const auto version = [&] {
    const Preflights::Version now = preflights.VersionOf("n");
    return std::pair(now.unix_nanos, now.accepted);
  };
  EXPECT_EQ(version(), std::pair(int64_t{0}, false));
  v1::NodePreflight result = ResultAt(kNow);
  result.add_violations("slow");
  preflights.Set("n", result);
  EXPECT_EQ(version(), std::pair(absl::ToUnixNanos(kNow), false));
  preflights.Accept("n");
  EXPECT_EQ(version(), std::pair(absl::ToUnixNanos(kNow), true));
  preflights.Set("n", ResultAt(kNow + absl::Hours(1)));
  EXPECT_EQ(version(), std::pair(absl::ToUnixNanos(kNow + absl::Hours(1)), false));
  preflights.Forget("n");
  EXPECT_EQ(version(), std::pair(int64_t{0}, false));
}

TEST(Preflights, ResultIsValidForADayOnItsNode) {
  EXPECT_FALSE(Passes(std::nullopt, Node(), kNow));
  EXPECT_TRUE(Passes(ResultAt(kNow - absl::Hours(23)), Node(), kNow));
  EXPECT_FALSE(Passes(ResultAt(kNow - absl::Hours(24)), Node(), kNow));
  EXPECT_TRUE(Passed(ResultAt(kNow - absl::Hours(240)), Node()));
  EXPECT_FALSE(Passes(ResultAt(kNow), Node(7), kNow)) << "a device is missing";
  EXPECT_FALSE(Passes(ResultAt(kNow), Node(8, v1::DEVICE_CPU), kNow));
  EXPECT_FALSE(Passes(ResultAt(kNow + absl::Hours(48)), Node(), kNow)) << "the date was set back";
}

TEST(Preflights, FailedResultCountsOnceAccepted) {
  Preflights preflights;
  v1::NodePreflight slow = ResultAt(kNow);
  slow.add_violations("device 0: product rate 402 TFLOP/s, floor 540");
  preflights.Set("n", slow);
  EXPECT_FALSE(Passes(preflights.Find("n"), Node(), kNow));
  preflights.Accept("n");
  EXPECT_TRUE(Passes(preflights.Find("n"), Node(), kNow));
  preflights.Set("n", slow);
  EXPECT_FALSE(Passes(preflights.Find("n"), Node(), kNow)) << "measured again";
  preflights.Set("n", ResultAt(kNow));
  preflights.Accept("n");
  EXPECT_FALSE(preflights.Find("n")->accepted()) << "there was nothing to accept";
}

TEST(Preflights, TruncatesStoredResultBeyondLimit) {
  v1::ListNodesResponse stored;
  stored.add_nodes()->set_name("n");
  stored.mutable_nodes(0)->mutable_preflight()->mutable_result()->set_error(std::string(1 << 20, 'x'));
  Preflights preflights;
  preflights.Load(stored);
  EXPECT_EQ(preflights.Find("n")->result().error().size(), 4096u);
}

TEST(Preflights, ResultsRoundTripThroughStore) {
  Preflights before;
  before.Set("n", ResultAt(kNow));
  before.SetRunning({"m"});
  v1::ListNodesResponse stored;
  for (const char* name : {"n", "m"}) {
    stored.add_nodes()->set_name(name);
    before.MarkIn(stored.mutable_nodes(stored.nodes_size() - 1));
  }
  EXPECT_FALSE(stored.nodes(0).in_preflight());
  EXPECT_TRUE(stored.nodes(1).in_preflight());
  Preflights after;
  after.Load(stored);
  EXPECT_EQ(after.Find("n")->slots(), 8);
  EXPECT_FALSE(after.Find("m").has_value());
  after.Forget("n");
  EXPECT_FALSE(after.Find("n").has_value());
}

}  // namespace
}  // namespace fsdpd
