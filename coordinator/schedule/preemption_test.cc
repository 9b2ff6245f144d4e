#include "coordinator/schedule/preemption.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/seeds.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Nodes of two slots; all slots that no occupant holds are free.
class PreemptionTest : public ::testing::Test {
 protected:
  void Node(const std::string& name, int free = 0) {
    NodeSlots node;
    node.name = name;
    node.slots = 2;
    for (int device = 2 - free; device < 2; ++device) node.free_devices.push_back(device);
    nodes_.push_back(node);
  }
  Occupant* Holds(const std::string& job, int64_t priority, const std::string& node,
                  std::vector<int> devices) {
    Occupant occupant;
    occupant.job = job;
    occupant.priority = priority;
    occupant.start_unix_nanos = static_cast<int64_t>(occupants_.size()) + 1;
    occupant.may_leave = true;
    occupant.devices[node] = std::move(devices);
    occupants_.push_back(occupant);
    return &occupants_.back();
  }
  std::vector<std::string> Leave(int64_t nodes, int64_t ranks, int64_t priority) {
    PlaceRequest request;
    request.nodes = nodes;
    request.ranks_per_node = ranks;
    request.device = v1::DEVICE_CPU;
    return ChooseVictims(request, priority, nodes_, ahead_, occupants_).leave;
  }

  std::vector<NodeSlots> nodes_;
  Reservations ahead_ = Reservations({});  // None.
  std::vector<Occupant> occupants_;
};

TEST_F(PreemptionTest, PreemptsLowestPriorityAndNewestFirst) {
  Node("a");
  Node("b");
  Holds("first", 1, "a", {0, 1});
  Holds("low", 0, "b", {0});
  Holds("late", 0, "b", {1});
  EXPECT_THAT(Leave(1, 1, 5), ElementsAre("late"));
  EXPECT_THAT(Leave(1, 2, 5), ElementsAre("late", "low"));
  EXPECT_THAT(Leave(2, 2, 5), ElementsAre("late", "low", "first"));
}

TEST_F(PreemptionTest, NeverPreemptsEqualOrHigherPriority) {
  Node("a");
  Holds("equal", 5, "a", {0, 1});
  EXPECT_THAT(Leave(1, 1, 5), IsEmpty());
  EXPECT_THAT(Leave(1, 1, 4), IsEmpty());
  EXPECT_THAT(Leave(1, 1, 6), ElementsAre("equal"));
}

TEST_F(PreemptionTest, PreemptsNobodyIfNotEnough) {
  Node("a");
  Node("b");
  Holds("low", 0, "a", {0, 1});
  Holds("kept", 0, "b", {0, 1})->may_leave = false;
  EXPECT_THAT(Leave(2, 2, 5), IsEmpty());
  EXPECT_THAT(Leave(1, 2, 5), ElementsAre("low"));
}

TEST_F(PreemptionTest, WaitsForJobsThatAreLeaving) {
  Node("a");
  Node("b");
  Holds("leaves", 9, "a", {0, 1})->leaves = true;
  Holds("low", 0, "b", {0, 1});
  EXPECT_THAT(Leave(1, 2, 5), IsEmpty());
  EXPECT_THAT(Leave(2, 2, 5), ElementsAre("low"));
}

TEST_F(PreemptionTest, KeepsJobsOnOtherNodes) {
  Node("a", /*free=*/1);
  Node("b");
  Holds("bystander", 0, "b", {0});
  Holds("wall", 9, "b", {1})->may_leave = false;
  Holds("in the way", 1, "a", {0});
  EXPECT_THAT(Leave(1, 2, 5), ElementsAre("in the way")) << "preempting the lowest priority would not help";
}

TEST_F(PreemptionTest, CountsNoSlotsOfDisconnectedNode) {
  Node("a");
  nodes_[0].disconnected = true;
  Holds("low", 0, "a", {0, 1});
  EXPECT_THAT(Leave(1, 1, 5), IsEmpty());
}

TEST_F(PreemptionTest, PreemptsBackfilledJobOfEqualPriority) {
  Node("a");
  Holds("lent", 5, "a", {0, 1})->backfilled = true;
  EXPECT_THAT(Leave(1, 1, 5), ElementsAre("lent"));
}

TEST_F(PreemptionTest, PreemptsNobodyForReservedSlots) {
  Node("a");
  Holds("low", 0, "a", {0, 1});
  ahead_ = Reservations(nodes_);
  PlaceRequest first;
  first.ranks_per_node = 2;
  first.device = v1::DEVICE_CPU;
  ahead_.Add("first", first, /*firm=*/false);
  EXPECT_THAT(Leave(1, 1, 5), IsEmpty()) << "the slots would go to the job ahead";
}

// Property: victims are preemptible, have lower priority, and none of them could have stayed.
TEST_F(PreemptionTest, PreemptsMinimumInRandomClusters) {
  for (int seed = 0; seed < Seeds(300); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<uint32_t>(bound)); };
    nodes_.clear();
    occupants_.clear();
    const int nodes = 1 + below(4);
    for (int i = 0; i < nodes; ++i) {
      const std::string name = "n" + std::to_string(i);
      Node(name);
      for (int device = 0; device < 2; ++device) {
        Occupant* made = Holds(name + "-" + std::to_string(device), below(4), name, {device});
        made->leaves = below(8) == 0;
        made->may_leave = below(4) != 0;
      }
    }
    PlaceRequest request;
    request.nodes = 1 + below(nodes);
    request.ranks_per_node = 1 + below(2);
    request.device = v1::DEVICE_CPU;
    const int64_t priority = below(4);
    const Victims victims = ChooseVictims(request, priority, nodes_, ahead_, occupants_);
    const std::vector<std::string>& left = victims.leave;
    const auto placed_without = [&](const std::set<std::string>& gone) {
      std::vector<NodeSlots> then = nodes_;
      for (const Occupant& each : occupants_) {
        if (!each.leaves && gone.count(each.job) == 0) continue;
        for (NodeSlots& node : then) {
          const auto held = each.devices.find(node.name);
          if (held == each.devices.end()) continue;
          node.free_devices.insert(node.free_devices.end(), held->second.begin(), held->second.end());
        }
      }
      return Place(request, then).placed();
    };
    std::set<std::string> all, gone(left.begin(), left.end());
    for (const Occupant& each : occupants_) {
      const bool able = !each.leaves && each.may_leave && each.priority < priority;
      if (able) all.insert(each.job);
      EXPECT_TRUE(able || gone.count(each.job) == 0) << each.job;
    }
    EXPECT_EQ(left.empty(), placed_without({}) || !placed_without(all));
    EXPECT_TRUE(left.empty() || placed_without(gone));
    EXPECT_EQ(victims.suffices, placed_without(gone));
    for (const std::string& each : left) {
      std::set<std::string> fewer = gone;
      fewer.erase(each);
      EXPECT_FALSE(placed_without(fewer)) << each << " could have stayed";
    }
  }
}

}  // namespace
}  // namespace fsdpd
