#include "fsdp/plan/memory/host_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/program/testing/program_cases.h"

namespace fsdpd {
namespace {

struct LaidOut {
  Spec spec;
  Layout layout;

  explicit LaidOut(const Spec& of) : spec(of), layout(MakeLayout(DescribeSpec(of), LayoutOptionsOf(of))) {}

  std::vector<SnapshotPlace> Places(int64_t rank) const {
    return SnapshotPlaces(spec, layout, {spec.mesh, rank});
  }
  int64_t Bytes(int64_t rank) const { return SnapshotBytes(spec, layout, {spec.mesh, rank}); }
};

Spec Saving(Strategy strategy, int64_t world) {
  Spec spec = SmallSpec(strategy);
  spec.mesh = Mesh::DataParallel(1, world);
  Save(&spec);
  return spec;
}

std::string PartsOf(const std::vector<SnapshotPlace>& places, int bucket) {
  std::string parts;
  for (const SnapshotPlace& place : places) {
    if (place.bucket != bucket) continue;
    switch (place.what) {
      case SnapshotPart::kMain:
        parts += "main ";
        break;
      case SnapshotPart::kHigh:
        parts += "high ";
        break;
      case SnapshotPart::kLow:
        parts += "low ";
        break;
      case SnapshotPart::kMoment:
        parts += "moment" + std::to_string(place.moment) + " ";
        break;
    }
  }
  return parts;
}

TEST(HostMemory, IsEmptyWithoutCheckpoints) {
  Spec spec = Saving(Strategy::kOptimGradsParams, 2);
  EXPECT_GT(LaidOut(spec).Bytes(0), 0);
  spec.checkpoint.every_steps = 0;
  EXPECT_EQ(LaidOut(spec).Bytes(0), 0);
  EXPECT_TRUE(LaidOut(spec).Places(0).empty());
}

TEST(HostMemory, ListsParametersThenMoments) {
  for (const int64_t world : {1, 3}) {
    const LaidOut made(Saving(Strategy::kOptimGradsParams, world));
    const std::vector<SnapshotPlace> places = made.Places(0);
    ASSERT_EQ(places.size(), made.layout.buckets.size() * 3);
    int64_t end = 0;
    for (const SnapshotPlace& place : places) {
      EXPECT_EQ(place.offset, end);
      EXPECT_EQ(place.offset % 256, 0);
      EXPECT_EQ(place.bytes, made.layout.buckets[place.bucket].main_elements * 4);
      end += (place.bytes + 255) / 256 * 256;
    }
    EXPECT_EQ(made.Bytes(0), end);
    for (size_t b = 0; b < made.layout.buckets.size(); ++b) {
      EXPECT_EQ(PartsOf(places, static_cast<int>(b)), "main moment0 moment1 ");
    }
  }
}

// The last part too, so that whatever follows in the same memory is aligned.
TEST(HostMemory, RoundsPartsUpToAlignment) {
  LaidOut made(Saving(Strategy::kOptimGradsParams, 2));
  for (Bucket& bucket : made.layout.buckets) bucket.main_elements = 65;  // 260 bytes.
  EXPECT_EQ(made.Places(0)[1].offset, 512);
  EXPECT_EQ(made.Places(0)[1].bytes, 260);
  EXPECT_EQ(made.Bytes(0), 512 * 3 * static_cast<int64_t>(made.layout.buckets.size()));
}

TEST(HostMemory, FrozenBucketsHaveNoMoments) {
  Spec spec = Saving(Strategy::kOptimGradsParams, 2);
  spec.frozen = {"embedding.*"};
  const LaidOut made(spec);
  EXPECT_EQ(PartsOf(made.Places(1), 0), "main ");
  EXPECT_EQ(PartsOf(made.Places(1), 1), "main moment0 moment1 ");
}

TEST(HostMemory, DependsOnOptimizerAndMomentType) {
  Spec spec = Saving(Strategy::kOptimGradsParams, 2);
  spec.precision.moments = DType::kBf16;
  LaidOut made(spec);
  EXPECT_EQ(made.Places(0)[1].bytes, made.layout.buckets[0].main_elements * 2);
  made.spec.optimizer.kind = OptimizerKind::kSgd;
  made.spec.optimizer.momentum = 0;
  EXPECT_EQ(PartsOf(made.Places(0), 0), "main ");
  made.spec.optimizer.momentum = 0.9;
  EXPECT_EQ(PartsOf(made.Places(0), 0), "main moment0 ");
}

TEST(HostMemory, CopiesSplitFp32Parts) {
  Spec spec = Saving(Strategy::kOptimGradsParams, 2);
  spec.device = DeviceKind::kCuda;
  spec.precision.compute = DType::kBf16;
  const LaidOut made(spec);
  ASSERT_TRUE(made.layout.buckets[0].types.split_fp32);
  const std::vector<SnapshotPlace> places = made.Places(0);
  EXPECT_EQ(PartsOf(places, 0), "high low moment0 moment1 ");
  EXPECT_EQ(places[0].bytes, made.layout.buckets[0].main_elements * 2);
  EXPECT_EQ(places[1].bytes, made.layout.buckets[0].main_elements * 2);
}

// All ranks together copy everything once, regardless of replication, and none copies more than rank 0.
TEST(HostMemory, CopiesOnlyFirstOwners) {
  for (const Strategy strategy : kStrategies) {
    for (const Strategy outer : {Strategy::kNoShard, Strategy::kOptim}) {
      Spec spec = Saving(strategy, 4);
      if (strategy != Strategy::kNoShard) spec.mesh = spec.mesh.WithReplicas(2);
      if (strategy == Strategy::kOptimGradsParams) spec.outer_strategy = outer;
      const LaidOut made(spec);
      std::vector<int64_t> main_elements(made.layout.buckets.size(), 0);
      for (int64_t rank = 0; rank < 4; ++rank) {
        EXPECT_LE(made.Bytes(rank), made.Bytes(0));
        for (const SnapshotPlace& place : made.Places(rank)) {
          if (place.what == SnapshotPart::kMain) main_elements[place.bucket] += place.bytes / 4;
        }
      }
      for (size_t b = 0; b < main_elements.size(); ++b) {
        EXPECT_EQ(main_elements[b], made.layout.buckets[b].bucket_elements) << NameOf(strategy);
      }
    }
  }
}

}  // namespace
}  // namespace fsdpd
