#include "coordinator/schedule/waiting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Waiting = v1::Job::Waiting;

NodeSlots Node(const std::string& name, int slots, std::vector<int> free) {
  NodeSlots node;
  node.name = name;
  node.slots = slots;
  node.free_devices = std::move(free);
  return node;
}

PlaceRequest Request(int64_t nodes, int64_t ranks) {
  PlaceRequest request;
  request.nodes = nodes;
  request.ranks_per_node = ranks;
  request.device = v1::DEVICE_CPU;
  return request;
}

TEST(Waiting, NoNodeOfKind) {
  NodeSlots gpus = Node("gpu", 8, {0, 1});
  gpus.device = v1::DEVICE_CUDA;
  const Waiting waiting = WaitingToBePlaced(Request(1, 1), {gpus});
  EXPECT_EQ(waiting.code(), Waiting::CODE_NO_AGENT);
  EXPECT_THAT(waiting.remedy(), HasSubstr("--device cpu"));
}

TEST(Waiting, TooFewNodesEvenWhenIdle) {
  EXPECT_EQ(WaitingToBePlaced(Request(2, 2), {Node("a", 2, {0, 1}), Node("b", 1, {0})}).code(),
            Waiting::CODE_NODES);
}

TEST(Waiting, DisallowedRequestIsLackOfNodes) {
  PlaceRequest request = Request(1, 1);
  request.plugin = "/plugins/mine.so";
  EXPECT_EQ(WaitingToBePlaced(request, {Node("a", 2, {0, 1})}).code(), Waiting::CODE_NODES);
}

TEST(Waiting, NodesWithOtherLabels) {
  PlaceRequest request = Request(1, 1);
  request.selector = *ParseSelector("gpu=h200");
  NodeSlots labelled = Node("b", 1, {});
  v1::Label* label = labelled.labels.Add();
  label->set_key("gpu");
  label->set_value("h200");
  const Waiting waiting = WaitingToBePlaced(request, {Node("a", 1, {})});
  EXPECT_EQ(waiting.code(), Waiting::CODE_LABELS);
  EXPECT_THAT(waiting.remedy(), HasSubstr("--label"));
  EXPECT_EQ(WaitingToBePlaced(request, {Node("a", 1, {0}), labelled}).code(), Waiting::CODE_SLOTS)
      << "the node with the labels is in use";
  request.ranks_per_node = 2;
  EXPECT_EQ(WaitingToBePlaced(request, {Node("a", 1, {0})}).code(), Waiting::CODE_NODES)
      << "no label makes it larger";
}

TEST(Waiting, OnlyForMemory) {
  PlaceRequest request = Request(1, 1);
  request.bytes_per_rank = 100;
  NodeSlots small = Node("a", 1, {});
  small.bytes_per_slot = 99;
  EXPECT_EQ(WaitingToBePlaced(request, {small}).code(), Waiting::CODE_MEMORY);
  EXPECT_EQ(WaitingToBePlaced(Request(1, 1), {Node("a", 1, {0})}).code(), Waiting::CODE_MEMORY)
      << "a plan that does not fit is refused before there is a number to compare";
}

TEST(Waiting, ForHostMemoryOfGpuNodes) {
  PlaceRequest request = Request(1, 1);
  request.host_bytes = 100;
  NodeSlots small = Node("a", 1, {0});
  small.host_bytes = 99;
  const Waiting waiting = WaitingToBePlaced(request, {small});
  EXPECT_EQ(waiting.code(), Waiting::CODE_MEMORY);
  EXPECT_EQ(waiting.remedy(), "nodes with more host memory");
}

TEST(Waiting, ForRanksHeldByOtherJobs) {
  NodeSlots busy = Node("a", 2, {0});
  busy.jobs = {"other-1"};
  const Waiting waiting = WaitingToBePlaced(Request(1, 2), {busy});
  EXPECT_EQ(waiting.code(), Waiting::CODE_SLOTS);
  EXPECT_THAT(waiting.jobs(), ElementsAre("other-1"));
  EXPECT_EQ(waiting.remedy(), "other-1 to end or be paused");
}

TEST(Waiting, ForPreflight) {
  NodeSlots measured = Node("a", 2, {});
  measured.measured = true;
  Waiting waiting = WaitingToBePlaced(Request(1, 2), {measured});
  EXPECT_EQ(waiting.code(), Waiting::CODE_SLOTS);
  EXPECT_EQ(waiting.jobs_size(), 0);
  EXPECT_EQ(waiting.remedy(), "the preflight of a to end");
  measured.jobs = {"other-1"};
  waiting = WaitingToBePlaced(Request(1, 2), {measured});
  EXPECT_THAT(waiting.jobs(), ElementsAre("other-1"));
  EXPECT_EQ(waiting.remedy(), "other-1 to end or be paused, or the preflight of a to end");
}

TEST(Waiting, ForDisconnectedNode) {
  NodeSlots disconnected = Node("b", 1, {});
  disconnected.disconnected = true;
  const Waiting waiting = WaitingToBePlaced(Request(2, 1), {Node("a", 1, {0}), disconnected});
  EXPECT_EQ(waiting.code(), Waiting::CODE_NODES_NOT_READY);
  EXPECT_EQ(waiting.remedy(), "b to reconnect");
  EXPECT_EQ(WaitingToBePlaced(Request(2, 1), {Node("a", 1, {}), disconnected}).code(), Waiting::CODE_SLOTS)
      << "its reconnect would not suffice";
}

TEST(Waiting, BoundsNamedHolders) {
  NodeSlots busy = Node("a", 100, {});
  for (int i = 100; i < 140; ++i) busy.jobs.push_back("job-" + std::to_string(i));
  const Waiting waiting = WaitingToBePlaced(Request(1, 100), {busy});
  EXPECT_EQ(waiting.jobs_size(), 16);
  EXPECT_THAT(waiting.remedy(), HasSubstr("job-107, ..."));
}

TEST(Waiting, ForOtherReasons) {
  EXPECT_THAT(WaitingBehind("big-1").jobs(), ElementsAre("big-1"));
  EXPECT_EQ(WaitingForTime(absl::FromUnixNanos(5)).not_before_unix_nanos(), 5);
  EXPECT_EQ(WaitingToBeResumed("j").remedy(), "fsdpctl resume j");
}

}  // namespace
}  // namespace fsdpd
