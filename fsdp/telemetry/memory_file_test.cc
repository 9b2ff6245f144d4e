#include "fsdp/telemetry/memory_file.h"

#include <gtest/gtest.h>

#include "fsdp/checkpoint/format/pickle.h"

namespace fsdpd {
namespace {

using Action = MemorySnapshot::Action;

std::string NameOf(int instruction) { return "instruction " + std::to_string(instruction); }

MemorySnapshot Example() {
  MemorySnapshot snapshot;
  snapshot.device = 1;
  MemorySnapshot::Segment segment;
  segment.address = uint64_t{1} << 45;
  segment.bytes = 4096;
  segment.blocks = {{1024, 1000, true, true, {12, 3}},
                    {2048, 2000, false, true, {12, MemoryPlace::kEvaluation}},
                    {1024, 0, false, false, {}}};
  snapshot.segments = {segment};
  snapshot.events = {{Action::kSegmentAlloc, segment.address, 4096, 7, 1'700'000'000'000'000, {12, 3}},
                     {Action::kAlloc, segment.address, 1024, 7, 1'700'000'000'000'001, {12, 3}},
                     {Action::kOutOfMemory, 500, 1 << 30, 7, 1'700'000'000'000'002, {12, 3}}};
  return snapshot;
}

int64_t Number(const PickleValue& value, const char* key) { return value.Find(key)->integer; }
std::string Text(const PickleValue& value, const char* key) { return std::string(value.Find(key)->text); }

// tests/integration/test_traces.py opens such a file with the viewer itself.
TEST(MemoryFile, HasFieldsOfPyTorchSnapshots) {
  const auto pickle = Pickle::Parse(MemoryFile(Example(), NameOf));
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const PickleValue& root = pickle->root();
  ASSERT_EQ(root.Find("segments")->items.size(), 1u);
  const PickleValue& segment = *root.Find("segments")->items[0];
  EXPECT_EQ(Number(segment, "device"), 1);
  EXPECT_EQ(Number(segment, "address"), int64_t{1} << 45);
  EXPECT_EQ(Number(segment, "total_size"), 4096);
  EXPECT_EQ(Number(segment, "allocated_size"), 1024);
  EXPECT_EQ(Number(segment, "active_size"), 3072);
  EXPECT_EQ(Number(segment, "requested_size"), 3000);
  EXPECT_EQ(Text(segment, "segment_type"), "large");
  const auto& blocks = segment.Find("blocks")->items;
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(Text(*blocks[0], "state"), "active_allocated");
  EXPECT_EQ(Text(*blocks[1], "state"), "active_pending_free");
  EXPECT_EQ(Text(*blocks[2], "state"), "inactive");
  EXPECT_EQ(Number(*blocks[2], "address"), (int64_t{1} << 45) + 3072);
  const auto& traces = root.Find("device_traces")->items;
  ASSERT_EQ(traces.size(), 2u) << "a list for each device";
  EXPECT_TRUE(traces[0]->items.empty());
  ASSERT_EQ(traces[1]->items.size(), 3u);
  EXPECT_EQ(Text(*traces[1]->items[1], "action"), "alloc");
  EXPECT_EQ(Number(*traces[1]->items[1], "time_us"), 1'700'000'000'000'001);
  EXPECT_EQ(Text(*traces[1]->items[2], "action"), "oom");
  EXPECT_EQ(Number(*traces[1]->items[2], "device_free"), 500);
  EXPECT_EQ(traces[1]->items[2]->Find("addr"), nullptr);
}

TEST(MemoryFile, UsesInstructionAsStackFrame) {
  const auto pickle = Pickle::Parse(MemoryFile(Example(), NameOf));
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const auto& blocks = pickle->root().Find("segments")->items[0]->Find("blocks")->items;
  const auto frames = [&](int block) { return blocks[block]->Find("frames")->items; };
  ASSERT_EQ(frames(0).size(), 1u);
  EXPECT_EQ(Text(*frames(0)[0], "name"), "instruction 3");
  EXPECT_EQ(Text(*frames(0)[0], "filename"), "step 12");
  EXPECT_EQ(Number(*frames(0)[0], "line"), 3);
  EXPECT_EQ(Text(*frames(1)[0], "name"), "evaluation");
  EXPECT_TRUE(frames(2).empty()) << "nobody knows";
}

TEST(MemoryFile, SupportsEmptySnapshot) {
  const auto pickle = Pickle::Parse(MemoryFile(MemorySnapshot(), NameOf));
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_TRUE(pickle->root().Find("segments")->items.empty());
  EXPECT_EQ(pickle->root().Find("device_traces")->items.size(), 1u);
}

}  // namespace
}  // namespace fsdpd
