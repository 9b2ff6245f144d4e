#include "coordinator/nodes/known_node.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(KnownNode, RoundTripsThroughStoreWithoutStream) {
  FakeClock clock;
  NodeView view;
  view.info.set_node("a");
  view.info.set_device(v1::DEVICE_CPU);
  view.info.set_slots(4);
  view.info.set_version("1");
  view.info.set_metrics_endpoint("h:1");
  view.info.set_memory_bytes_per_slot(7);
  view.info.set_host_memory_bytes(8);
  view.info.add_labels()->set_key("gpu");
  view.info.set_nvlink_domain("rack-1");
  view.address = "h:2";
  view.connected = true;
  view.last_seen = clock.Now();
  v1::Node stored = NodeOf(view, clock);
  EXPECT_TRUE(stored.connected());
  EXPECT_EQ(stored.labels(0).key() + " " + stored.nvlink_domain(), "gpu rack-1");
  clock.Advance(absl::Minutes(3));
  v1::Node shown = NodeOf(ViewOf(stored, clock.Wall(), clock), clock);
  EXPECT_FALSE(shown.connected());
  stored.set_connected(false);
  EXPECT_EQ(shown.SerializeAsString(), stored.SerializeAsString());
}

// Regression: texts stored by an older release were shown unbounded on every screen.
TEST(KnownNode, TruncatesTextsBeyondRegistrationLimits) {
  FakeClock clock;
  v1::Node stored;
  const std::string large(5000, 'x');
  stored.set_version(large);
  stored.set_metrics_endpoint("a\n\x1b[31mb");
  stored.set_address(large);
  stored.set_revoked_serial(large);
  stored.set_nvlink_domain(large);
  stored.add_labels()->set_key(large);
  const NodeView view = ViewOf(stored, clock.Wall(), clock);
  EXPECT_EQ(view.info.version().size(), kMaxRegisterText);
  EXPECT_EQ(view.info.metrics_endpoint(), "a\\n\\x1b[31mb");
  EXPECT_EQ(view.address.size(), kMaxRegisterText);
  EXPECT_EQ(view.revoked_serial.size(), kMaxRegisterText);
  EXPECT_EQ(view.info.nvlink_domain(), "");
  EXPECT_TRUE(view.info.labels().empty());
}

// The clock of the previous leader was an hour ahead.
TEST(KnownNode, AgeFollowsNewestStoredDate) {
  FakeClock clock;
  const absl::Time date = clock.Wall() + absl::Hours(1);
  v1::Node node;
  node.set_last_seen_unix_nanos(absl::ToUnixNanos(date - absl::Minutes(2)));
  EXPECT_EQ(ViewOf(node, date, clock).last_seen, clock.Now() - absl::Minutes(2));
}

TEST(KnownNode, LastSeenIsBeforeNowForAnyDate) {
  FakeClock clock;
  v1::Node node;
  node.set_last_seen_unix_nanos(absl::ToUnixNanos(clock.Wall() + absl::Hours(5)));
  EXPECT_LT(ViewOf(node, clock.Wall(), clock).last_seen, clock.Now());
}

}  // namespace
}  // namespace fsdpd
