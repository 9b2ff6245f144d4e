#include "coordinator/attempt/slot_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

NodeView View(const std::string& name, int slots) {
  NodeView view;
  view.info.set_node(name);
  view.info.set_device(v1::DEVICE_CPU);
  view.info.set_slots(slots);
  return view;
}

AttemptFacts Holding(const std::string& job, const std::string& node, const std::vector<int>& devices) {
  AttemptFacts facts;
  facts.ref = {job, 1};
  NodePart part;
  part.node = node;
  part.devices = devices;
  facts.parts.push_back(part);
  return facts;
}

TEST(CountSlots, OlderAgentsDoNotTellWhichPlugInsTheyLoad) {
  NodeView none = View("a", 1), old = View("b", 1), current = View("c", 1);
  old.info.add_plugin_dirs("/mnt/plugins");
  current.info.add_plugin_dirs("/plugins");
  current.info.set_plugin_dirs_as_given(true);
  const auto slots = CountSlots({&none, &old, &current}, {});
  EXPECT_THAT(slots[0].plugin_dirs, IsEmpty());
  EXPECT_THAT(slots[1].plugin_dirs, ElementsAre("/"));
  EXPECT_THAT(slots[2].plugin_dirs, ElementsAre("/plugins"));
}

TEST(CountSlots, SubtractsHeldSlotsAndNamesHolders) {
  std::map<AttemptRef, AttemptFacts> attempts;
  attempts[{"x", 1}] = Holding("x", "a", {1});
  attempts[{"y", 1}] = Holding("y", "a", {3});
  const NodeView a = View("a", 4), b = View("b", 2);
  const auto slots = CountSlots({&a, &b}, attempts);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_THAT(slots[0].free_devices, ElementsAre(0, 2));
  EXPECT_THAT(slots[0].jobs, ElementsAre("x", "y"));
  EXPECT_THAT(slots[1].free_devices, ElementsAre(0, 1));
}

TEST(CountSlots, StoppedNodeHoldsNothing) {
  std::map<AttemptRef, AttemptFacts> attempts;
  attempts[{"x", 1}] = Holding("x", "a", {0, 1});
  const NodeView a = View("a", 2);
  EXPECT_THAT(CountSlots({&a}, attempts)[0].free_devices, IsEmpty());
  attempts[{"x", 1}].parts[0].stopped = true;
  EXPECT_THAT(CountSlots({&a}, attempts)[0].free_devices, ElementsAre(0, 1));
}

// Devices that a node no longer has, or never had, do not count.
TEST(CountFree, MatchesCountSlots) {
  const NodeView a = View("a", 4), b = View("b", 2), c = View("c", 1);
  std::map<AttemptRef, AttemptFacts> attempts;
  attempts[{"x", 1}] = Holding("x", "a", {0, 2, 9, -1});
  attempts[{"y", 1}] = Holding("y", "b", {1});
  attempts[{"z", 1}] = Holding("z", "a", {2});
  attempts[{"w", 1}] = Holding("w", "lost", {0});
  std::vector<HeldDevices> held;
  for (const auto& [ref, facts] : attempts) held.emplace_back(facts.parts[0].node, facts.parts[0].devices);
  const auto free = CountFree({&a, &b, &c}, held);
  EXPECT_THAT(free, ElementsAre(Pair("a", 2), Pair("b", 1), Pair("c", 1)));
  for (const NodeSlots& slots : CountSlots({&a, &b, &c}, attempts))
    EXPECT_EQ(static_cast<size_t>(free.at(slots.name)), slots.free_devices.size()) << slots.name;
}

TEST(CountSlots, TakeOffMatchesCountSlots) {
  const NodeView a = View("a", 4), b = View("b", 2);
  std::map<AttemptRef, AttemptFacts> attempts;
  attempts[{"y", 1}] = Holding("y", "a", {1});
  auto slots = CountSlots({&a, &b}, attempts);
  AttemptFacts& launched = attempts[{"x", 1}] = Holding("x", "a", {0, 2});
  launched.parts.push_back(Holding("x", "b", {1}).parts[0]);
  TakeSlots(launched, &slots);
  const auto counted = CountSlots({&a, &b}, attempts);
  ASSERT_EQ(slots.size(), 2u);
  for (size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(slots[i].free_devices, counted[i].free_devices);
    EXPECT_EQ(slots[i].jobs, counted[i].jobs);
  }
  EXPECT_THAT(slots[0].free_devices, ElementsAre(3));
}

}  // namespace
}  // namespace fsdpd
