#include "coordinator/slot_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

TEST(CountSlots, TakesOffWhatAttemptsHoldAndNamesThem) {
  std::map<AttemptRef, AttemptFacts> attempts;
  attempts[{"x", 1}] = Holding("x", "a", {1});
  attempts[{"y", 1}] = Holding("y", "a", {3});
  const auto slots = CountSlots({View("a", 4), View("b", 2)}, attempts);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_THAT(slots[0].free_devices, ElementsAre(0, 2));
  EXPECT_THAT(slots[0].jobs, ElementsAre("x", "y"));
  EXPECT_THAT(slots[1].free_devices, ElementsAre(0, 1));
}

TEST(CountSlots, ANodeThatStoppedHoldsNothing) {
  std::map<AttemptRef, AttemptFacts> attempts;
  attempts[{"x", 1}] = Holding("x", "a", {0, 1});
  EXPECT_THAT(CountSlots({View("a", 2)}, attempts)[0].free_devices, IsEmpty());
  attempts[{"x", 1}].parts[0].stopped = true;
  EXPECT_THAT(CountSlots({View("a", 2)}, attempts)[0].free_devices, ElementsAre(0, 1));
}

}  // namespace
}  // namespace fsdpd
