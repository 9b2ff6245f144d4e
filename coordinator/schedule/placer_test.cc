#include "coordinator/schedule/placer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

NodeSlots Node(const std::string& name, int slots, std::vector<int> free,
               v1::Device device = v1::DEVICE_CPU) {
  NodeSlots node;
  node.name = name;
  node.device = device;
  node.slots = slots;
  node.free_devices = std::move(free);
  if (static_cast<int>(node.free_devices.size()) < slots) node.jobs = {"job-x"};
  return node;
}

PlaceRequest Request(int64_t nodes, int64_t ranks, int64_t bytes = 0) {
  return {nodes, ranks, v1::DEVICE_CPU, bytes, {}};
}

NodeSlots Sized(const std::string& name, int slots, int64_t bytes_per_slot) {
  NodeSlots node = Node(name, slots, {});
  node.jobs.clear();
  for (int device = 0; device < slots; ++device) node.free_devices.push_back(device);
  node.bytes_per_slot = bytes_per_slot;
  return node;
}

TEST(Placer, AssignsConsecutiveRanksByNodeName) {
  const PlaceDecision d = Place(Request(2, 2), {Node("b", 2, {0, 1}), Node("a", 2, {0, 1})});
  ASSERT_EQ(d.placements.size(), 2u);
  EXPECT_EQ(d.placements[0].node(), "a");
  EXPECT_EQ(d.placements[0].first_rank(), 0);
  EXPECT_EQ(d.placements[1].node(), "b");
  EXPECT_EQ(d.placements[1].first_rank(), 2);
  EXPECT_EQ(d.reason, "launching 4 ranks on a, b");
}

TEST(Placer, UsesOnlyFreeDevices) {
  const PlaceDecision d = Place(Request(1, 2), {Node("a", 4, {1, 3})});
  ASSERT_TRUE(d.placed());
  EXPECT_THAT(d.placements[0].devices(), ElementsAre(1, 3));
}

NodeSlots Labelled(NodeSlots node, const std::string& key, const std::string& value) {
  v1::Label* label = node.labels.Add();
  label->set_key(key);
  label->set_value(value);
  return node;
}

TEST(Placer, UsesOnlyNodesWithSelectedLabels) {
  PlaceRequest request = Request(1, 1);
  request.selector = *ParseSelector("gpu=h200,!shared");
  const NodeSlots plain = Node("a", 1, {0}), fits = Labelled(Node("c", 1, {0}), "gpu", "h200");
  const NodeSlots shared = Labelled(Labelled(Node("b", 1, {0}), "gpu", "h200"), "shared", "");
  const PlaceDecision placed = Place(request, {plain, shared, fits});
  ASSERT_TRUE(placed.placed());
  EXPECT_EQ(placed.placements[0].node(), "c");
  const PlaceDecision waits = Place(request, {plain, shared});
  EXPECT_FALSE(waits.placed());
  EXPECT_FALSE(waits.possible);
  EXPECT_EQ(
      waits.reason,
      "needs 1 node of gpu=h200,!shared with 1 free cpu slot; a is not gpu=h200, b has the label shared; "
      "even when idle, no ready node could take 1 rank: add nodes, or nodes with more slots or memory, with "
      "these labels");
  EXPECT_EQ(CountNodes(request, {plain, shared, fits}).idle, 1);
}

NodeSlots In(const std::string& domain, const std::string& name, std::vector<int> free = {0}) {
  NodeSlots node = Node(name, 1, std::move(free));
  node.domain = domain;
  return node;
}

std::string NodesOf(const PlaceDecision& decision) {
  std::string names;
  for (const v1::Job::Placement& placement : decision.placements) names += placement.node();
  return names;
}

TEST(Placer, PrefersSmallestSufficientNvlinkDomain) {
  const std::vector<NodeSlots> nodes = {In("", "a"),  In("x", "b"), In("y", "c"), In("y", "d"),
                                        In("z", "e"), In("z", "f"), In("z", "g")};
  EXPECT_EQ(NodesOf(Place(Request(2, 1), nodes)), "cd");
  EXPECT_EQ(Place(Request(2, 1), nodes).reason, "launching 2 ranks on c, d of NVLink domain y");
  EXPECT_EQ(NodesOf(Place(Request(3, 1), nodes)), "efg");
  EXPECT_EQ(NodesOf(Place(Request(1, 1), nodes)), "a") << "a single node needs no domain";
  EXPECT_EQ(Place(Request(4, 1), nodes).placements.size(), 4u)
      << "no domain has enough nodes, but the job still runs";
  EXPECT_EQ(NodesOf(Place(Request(2, 1), {In("", "a"), In("y", "c"), In("y", "d", {}), In("z", "e")})), "ac")
      << "no domain has two free nodes";
}

TEST(Placer, PrefersPreviousDomainAndAvoidsDomainOfFailedNode) {
  const std::vector<NodeSlots> nodes = {In("x", "a"), In("x", "b"), In("y", "c"), In("y", "d")};
  PlaceRequest request = Request(2, 1);
  request.before = {"c", "d"};
  EXPECT_EQ(NodesOf(Place(request, nodes)), "cd");
  request.avoided = {"c"};
  EXPECT_EQ(NodesOf(Place(request, nodes)), "ab");
}

// Regression: the job got this node repeatedly, until its attempts were used up.
TEST(Placer, UsesFailedNodeLastEvenOverDomain) {
  PlaceRequest request = Request(2, 1);
  request.avoided = {"a"};
  EXPECT_EQ(NodesOf(Place(request, {In("x", "a"), In("x", "b"), In("", "c")})), "cb");
  EXPECT_EQ(NodesOf(Place(request, {In("x", "a"), In("x", "b"), In("", "c", {})})), "ab")
      << "there are no others";
  request = Request(3, 1);
  request.avoided = {"a"};
  request.together = 2;
  EXPECT_EQ(NodesOf(Place(request, {In("x", "a"), In("x", "b"), In("y", "c"), In("y", "d")})), "cdb");
}

TEST(Placer, KeepsRanksThatCommunicateWithinLayersInOneDomain) {
  const std::vector<NodeSlots> nodes = {In("x", "a"), In("y", "b"), In("x", "c"), In("y", "d"),
                                        In("", "e"),  In("y", "f"), In("", "g")};
  PlaceRequest request = Request(4, 1);
  request.together = 2;
  EXPECT_EQ(NodesOf(Place(request, nodes)), "bdac") << "two of y, and two of x";
  request.nodes = 6;
  EXPECT_EQ(NodesOf(Place(request, nodes)), "bdacef") << "groups within a domain precede the other nodes";
  request.together = 3;
  EXPECT_EQ(NodesOf(Place(request, nodes)), "bdfeac") << "x has fewer than three nodes";
}

TEST(Placer, ComputesNodesThatCommunicateWithinLayers) {
  const auto together = [](int64_t nodes, int64_t ranks, int64_t tensor, int64_t context, int64_t expert) {
    v1::JobSpec spec;
    spec.mutable_resources()->set_nodes(nodes);
    spec.mutable_resources()->set_ranks_per_node(ranks);
    spec.mutable_parallel()->set_tensor(tensor);
    spec.mutable_parallel()->set_context(context);
    spec.mutable_parallel()->set_expert(expert);
    return RequestOf(WithDefaults(spec, nullptr)).together;
  };
  EXPECT_EQ(together(8, 8, 8, 1, 1), 1) << "within each node";
  EXPECT_EQ(together(8, 8, 1, 1, 32), 4);
  EXPECT_EQ(together(8, 8, 4, 4, 1), 2);
  EXPECT_EQ(together(6, 4, 1, 1, 6), 3) << "two groups of six ranks fit three nodes exactly";
  EXPECT_EQ(together(2, 4, 1, 1, 6), 2) << "at most the nodes of the job";
  EXPECT_EQ(together(2, 0, 1, 1, 6), 1);
  EXPECT_EQ(together(2, 4, 1, int64_t{1} << 62, 16384), 1) << "it was not validated yet";
}

TEST(Placer, KeepsLargeFreeBlocksForLargeJobs) {
  const PlaceDecision d = Place(Request(1, 1), {Node("a", 4, {0, 1, 2, 3}), Node("b", 4, {2})});
  ASSERT_TRUE(d.placed());
  EXPECT_EQ(d.placements[0].node(), "b");
}

TEST(Placer, PrefersNodesOfPreviousAttempt) {
  PlaceRequest request = Request(2, 1);
  request.before = {"c", "d"};
  const std::vector<NodeSlots> nodes = {Node("a", 1, {0}), Node("b", 1, {0}), Node("c", 4, {0, 1, 2, 3}),
                                        Node("d", 1, {})};
  const PlaceDecision d = Place(request, nodes);
  ASSERT_TRUE(d.placed());
  EXPECT_EQ(d.placements[0].node(), "a") << "d has too few free slots";
  EXPECT_EQ(d.placements[1].node(), "c") << "although others have smaller free blocks";
}

TEST(Placer, UsesFailedNodeLast) {
  PlaceRequest request = Request(1, 1);
  request.before = {"a"};
  request.avoided = {"a"};
  EXPECT_EQ(Place(request, {Node("a", 1, {0}), Node("b", 4, {0, 1, 2, 3})}).placements[0].node(), "b");
  EXPECT_EQ(Place(request, {Node("a", 1, {0}), Node("b", 4, {})}).placements[0].node(), "a");
  request.avoided = {"a", "b"};
  EXPECT_EQ(Place(request, {Node("a", 1, {0}), Node("b", 1, {0}), Node("c", 1, {0})}).placements[0].node(),
            "c");
}

TEST(Placer, SkipsCordonedNodeAndNamesIt) {
  NodeSlots cordoned = Node("b", 2, {0, 1});
  cordoned.cordon = "a fan is broken";
  EXPECT_EQ(Place(Request(1, 2), {Node("a", 2, {0, 1}), cordoned}).placements[0].node(), "a");
  const PlaceDecision d = Place(Request(2, 2), {Node("a", 2, {0, 1}), cordoned});
  EXPECT_FALSE(d.placed());
  EXPECT_FALSE(d.possible) << "no freed slot helps, so others go first";
  EXPECT_EQ(d.reason,
            "needs 2 nodes with 2 free cpu slots each; a has 2 of 2 free, b is cordoned (a fan is broken); "
            "even when idle, only 1 ready node could take 2 ranks: uncordon a node, or add "
            "nodes, or nodes with more slots or memory");
  cordoned.cordon = "";
  EXPECT_THAT(Place(Request(1, 2), {cordoned}).reason, HasSubstr("; b is cordoned; even when idle"));
  EXPECT_FALSE(OfferTo(Request(1, 2), {cordoned}).firm);
}

TEST(Placer, ReasonNamesNeedAndHolders) {
  const PlaceDecision d = Place(Request(2, 2), {Node("node-0", 2, {0, 1}), Node("node-1", 2, {})});
  EXPECT_FALSE(d.placed());
  EXPECT_EQ(d.reason,
            "needs 2 nodes with 2 free cpu slots each; node-0 has 2 of 2 free, node-1 has 0 of 2 free (held "
            "by job-x)");
}

TEST(Placer, ReportsJobLargerThanCluster) {
  const PlaceDecision d = Place(Request(3, 2), {Node("node-0", 2, {0, 1}), Node("node-1", 1, {0})});
  EXPECT_FALSE(d.placed());
  EXPECT_THAT(d.reason, HasSubstr("even when idle, only 1 ready node could take 2 ranks"));
}

TEST(Placer, PossibleCountsIdleAndReconnectingNodes) {
  EXPECT_TRUE(Place(Request(1, 2), {Node("a", 2, {0})}).possible);
  EXPECT_FALSE(Place(Request(1, 3), {Node("a", 2, {0})}).possible);
  EXPECT_FALSE(Place(Request(2, 2), {Node("a", 2, {0, 1})}).possible);
  NodeSlots disconnected = Node("b", 2, {});
  disconnected.disconnected = true;
  const PlaceDecision d = Place(Request(2, 2), {Node("a", 2, {0, 1}), disconnected});
  EXPECT_TRUE(d.possible);
  EXPECT_FALSE(d.placed());
  EXPECT_THAT(d.reason, HasSubstr("a has 2 of 2 free, b is not ready"));
}

TEST(Placer, DoesNotMixDeviceKinds) {
  const PlaceDecision d = Place(Request(1, 1), {Node("gpu", 8, {0, 1}, v1::DEVICE_CUDA)});
  EXPECT_FALSE(d.placed());
  EXPECT_THAT(
      d.reason,
      HasSubstr("no registered node could take it: no cpu agent is connected (1 agent of another kind)"));
  EXPECT_THAT(Place(Request(1, 1), {}).reason, HasSubstr("no agent is connected"));
}

TEST(Placer, BoundsReasonInLargeCluster) {
  std::vector<NodeSlots> nodes;
  for (int i = 0; i < 2000; ++i) nodes.push_back(Node("node-" + std::to_string(i), 8, {}));
  const PlaceDecision d = Place(Request(1, 8), nodes);
  EXPECT_LT(d.reason.size(), 700u);
  EXPECT_THAT(d.reason, HasSubstr("and 1992 more"));
}

TEST(Placer, PlacesEachRankOnceOnDistinctFreeDevice) {
  for (int nodes = 1; nodes <= 4; ++nodes) {
    for (int per_node = 1; per_node <= 3; ++per_node) {
      const std::vector<NodeSlots> cluster = {Node("a", 4, {0, 1, 2}), Node("b", 4, {3}),
                                              Node("c", 4, {0, 2}), Node("d", 4, {0, 1, 2, 3})};
      const PlaceDecision d = Place(Request(nodes, per_node), cluster);
      const int able = per_node == 1 ? 4 : per_node == 2 ? 3 : 2;
      ASSERT_EQ(d.placed(), nodes <= able) << d.reason;
      int next_rank = 0;
      for (const auto& placement : d.placements) {
        EXPECT_EQ(placement.first_rank(), next_rank);
        EXPECT_EQ(placement.devices_size(), per_node);
        next_rank += placement.ranks();
      }
      if (d.placed()) {
        EXPECT_EQ(next_rank, nodes * per_node);
      }
    }
  }
}

TEST(Placer, ChecksMemoryPerRank) {
  const std::vector<NodeSlots> nodes = {Sized("a", 2, 50), Sized("b", 2, 100), Sized("c", 2, 70)};
  const PlaceDecision d = Place(Request(2, 2, 60), nodes);
  ASSERT_EQ(d.placements.size(), 2u);
  EXPECT_EQ(d.placements[0].node(), "b");
  EXPECT_EQ(d.placements[1].node(), "c");
  EXPECT_FALSE(Place(Request(2, 2, 80), nodes).possible);
  EXPECT_TRUE(Place(Request(1, 2, 100), nodes).placed());
}

TEST(Placer, AssumesUnknownMemorySuffices) {
  EXPECT_TRUE(Place(Request(1, 1, 60), {Sized("a", 1, 0)}).placed());
}

TEST(Placer, ChecksHostMemory) {
  NodeSlots small = Sized("a", 2, 0), large = Sized("b", 2, 0);
  small.host_bytes = 99;
  large.host_bytes = 100;
  PlaceRequest request = Request(1, 2);
  request.host_bytes = 100;
  EXPECT_EQ(Place(request, {small, large}).placements[0].node(), "b");
  const PlaceDecision none = Place(request, {small});
  EXPECT_FALSE(none.possible);
  EXPECT_THAT(none.reason, HasSubstr("a has 99 B of host memory, but the job's ranks there need 100 B"));
  EXPECT_TRUE(Place(request, {Sized("a", 2, 0)}).placed()) << "not known";
}

TEST(Placer, KeepsLargeMemorySlotsForLargeRanks) {
  EXPECT_EQ(Place(Request(1, 1, 40), {Sized("a", 2, 90), Sized("b", 2, 50)}).placements[0].node(), "b");
}

TEST(Placer, ChecksAllowedEnv) {
  v1::JobSpec spec = WithDefaults(v1::JobSpec(), nullptr);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  spec.add_env()->set_name("NCCL_DEBUG");
  spec.add_env()->set_name("OMP_TOOL");
  NodeSlots allows = Sized("b", 1, 0);
  allows.env = {"OMP_*"};
  EXPECT_EQ(Place(RequestOf(spec), {Sized("a", 1, 0), allows}).placements[0].node(), "b");
  const PlaceDecision none = Place(RequestOf(spec), {Sized("a", 1, 0)});
  EXPECT_FALSE(none.possible);
  EXPECT_THAT(none.reason, HasSubstr("a does not allow env OMP_TOOL"));
  spec.mutable_env(0)->set_name("NCCL_NET_PLUGIN");
  EXPECT_THAT(Place(RequestOf(spec), {allows}).reason, HasSubstr("b does not allow env NCCL_NET_PLUGIN"));
}

TEST(Placer, ReasonNamesMissingMemory) {
  const PlaceDecision d = Place(Request(2, 1, 60), {Sized("a", 1, 50), Sized("b", 1, 70)});
  EXPECT_EQ(
      d.reason,
      "needs 2 nodes with 1 free cpu slot of 60 B each; a offers 50 B per slot, b has 1 of 1 free; even "
      "when idle, only 1 ready node could take 1 rank of 60 B each: add nodes, or nodes with more "
      "slots or memory, or submit the job again to plan it for the ready nodes");
  EXPECT_THAT(Place(Request(2, 1, 60), {Sized("b", 1, 70)}).reason, Not(HasSubstr("60 B")));
}

TEST(OfferTo, IsMemoryThatEnoughNodesHave) {
  const std::vector<NodeSlots> nodes = {Sized("huge", 8, 500), Sized("a", 2, 100), Sized("b", 2, 70),
                                        Sized("tiny", 2, 10)};
  const auto offer = [&](int64_t count, int64_t ranks) { return OfferTo(Request(count, ranks), nodes); };
  EXPECT_EQ(offer(1, 1).bytes_per_rank, 500) << "a smaller node elsewhere does not decide";
  EXPECT_EQ(offer(2, 1).bytes_per_rank, 100) << "nor does a bigger one";
  EXPECT_EQ(offer(3, 2).bytes_per_rank, 70);
  EXPECT_EQ(offer(4, 1).bytes_per_rank, 10);
  EXPECT_EQ(offer(1, 4).bytes_per_rank, 500);
  EXPECT_TRUE(offer(4, 2).firm);
  EXPECT_FALSE(offer(5, 2).firm);
  EXPECT_EQ(offer(5, 2).bytes_per_rank, 500) << "later nodes may have as much memory as the best";
  EXPECT_EQ(offer(1, 9).bytes_per_rank, 0);
  EXPECT_FALSE(offer(1, 9).firm);
}

TEST(OfferTo, UsesConnectedNodesOfTheKind) {
  NodeSlots disconnected = Sized("away", 1, 500);
  disconnected.disconnected = true;
  NodeSlots other = Sized("other", 1, 500);
  other.device = v1::DEVICE_CUDA;
  EXPECT_EQ(OfferTo(Request(1, 1), {disconnected, other, Sized("a", 1, 90)}).bytes_per_rank, 90);
  EXPECT_FALSE(OfferTo(Request(1, 1), {disconnected, other}).firm);
  EXPECT_FALSE(OfferTo(Request(0, 1), {Sized("a", 1, 90)}).firm) << "the rules reject an invalid spec";
}

TEST(OfferTo, IsUnknownWithoutNodeMemory) {
  const std::vector<NodeSlots> nodes = {Sized("a", 1, 0), Sized("b", 1, 90)};
  EXPECT_EQ(OfferTo(Request(1, 1), nodes).bytes_per_rank, 0);
  EXPECT_TRUE(OfferTo(Request(1, 1), nodes).firm);
  EXPECT_EQ(OfferTo(Request(2, 1), nodes).bytes_per_rank, 90);
}

// Property: whatever `auto` chooses for an offer, the job can be placed.
TEST(OfferTo, FitsWhereJobIsPlaced) {
  for (int64_t nodes = 1; nodes <= 4; ++nodes) {
    for (int64_t ranks = 1; ranks <= 3; ++ranks) {
      const std::vector<NodeSlots> cluster = {Sized("a", 3, 40), Sized("b", 2, 90), Sized("c", 1, 70),
                                              Sized("d", 3, 60)};
      const MemoryOffer offer = OfferTo(Request(nodes, ranks), cluster);
      EXPECT_EQ(Place(Request(nodes, ranks, offer.bytes_per_rank), cluster).placed(), offer.firm);
      if (offer.firm) {
        EXPECT_FALSE(Place(Request(nodes, ranks, offer.bytes_per_rank + 1), cluster).placed());
      }
    }
  }
}

TEST(Placer, EmptySpecNeedsOneCudaRank) {
  const PlaceRequest request = RequestOf(WithDefaults(v1::JobSpec(), nullptr));
  EXPECT_EQ(request.nodes, 1);
  EXPECT_EQ(request.ranks_per_node, 1);
  EXPECT_EQ(request.device, v1::DEVICE_CUDA);
}

TEST(Placer, BehindReasonNamesTheJobAhead) {
  v1::Job ahead, job;
  ahead.set_id("big-1");
  EXPECT_THAT(BehindReason(Request(1, 2), ahead, job),
              HasSubstr("behind job big-1, which was submitted first"));
  ahead.mutable_spec()->set_priority(3);
  EXPECT_THAT(BehindReason(Request(1, 2), ahead, job), HasSubstr("behind job big-1, which has priority 3"));
}

TEST(Placer, PlacesPluginJobOnlyWherePluginsAreLoaded) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_nodes(1);
  spec.mutable_resources()->set_ranks_per_node(1);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  spec.mutable_model()->mutable_plugin()->set_path("/plugins/mine.so");
  NodeSlots without, with;
  without.name = "a";
  with.name = "b";
  for (NodeSlots* node : {&without, &with}) {
    node->slots = 1;
    node->free_devices = {0};
  }
  without.plugin_dirs = {"/plugins/mine", "/other"};
  with.plugin_dirs = {"/other", "/plugins"};
  const PlaceDecision placed = Place(RequestOf(spec), {without, with});
  ASSERT_EQ(placed.placements.size(), 1u);
  EXPECT_EQ(placed.placements[0].node(), "b");
  const PlaceDecision waits = Place(RequestOf(spec), {without});
  EXPECT_FALSE(waits.placed());
  EXPECT_FALSE(waits.possible);
  EXPECT_THAT(waits.reason, HasSubstr("a has no --plugin-dir that contains /plugins/mine.so"));
  spec.mutable_model()->mutable_package()->set_path("/plugins/mine.fsdpd");
  EXPECT_FALSE(Place(RequestOf(spec), {without}).possible) << "a package is native code, too";
  spec.mutable_model()->mutable_package()->set_path("/other/./mine.fsdpd");
  EXPECT_TRUE(Place(RequestOf(spec), {without}).placed());
}

}  // namespace
}  // namespace fsdpd
