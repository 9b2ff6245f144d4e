#include "fsdp/engine/base_fingerprint.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <thread>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

struct Case {
  Mesh mesh;
  Strategy strategy = Strategy::kOptimGradsParams;
};

// The fingerprint of ranks whose weights are `first`, `first` + 1 and so on in each parameter.
std::string FingerprintOf(const Case& c, float first = 0) {
  Spec spec;
  spec.model = SmallLlama();
  spec.data.sequence_length = 16;
  spec.mesh = c.mesh;
  spec.strategy = c.strategy;
  spec.lora.rank = 2;
  spec.lora.alpha = 4;
  const Layout layout = MakeLayout(DescribeSpec(spec), LayoutOptionsOf(spec));
  const auto initial = [&](int, int, int64_t begin, int64_t elements) {
    return at::arange(begin, begin + elements, at::kFloat).add_(first);
  };
  LocalStore store;
  std::vector<std::string> found(c.mesh.world());
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < c.mesh.world(); ++rank) {
    ranks.emplace_back([&, rank] {
      const MeshPosition position{c.mesh, rank};
      const auto params = ShardedParams::Make(spec, layout, position, at::kCPU, initial);
      ASSERT_TRUE(params.ok()) << params.status();
      const auto made = FingerprintOfBase(layout, position, *params, &store, absl::Seconds(30));
      ASSERT_TRUE(made.ok()) << made.status();
      found[rank] = *made;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& each : found) EXPECT_EQ(each, found[0]);
  return found[0];
}

TEST(BaseFingerprint, DoesNotDependOnSharding) {
  const std::string alone = FingerprintOf({Mesh::DataParallel(1, 1), Strategy::kNoShard});
  EXPECT_EQ(alone.substr(0, 5), "fp32 ");
  EXPECT_EQ(FingerprintOf({Mesh::DataParallel(1, 3)}), alone);
  EXPECT_EQ(FingerprintOf({Mesh::DataParallel(2, 2)}), alone);
  EXPECT_EQ(FingerprintOf({Mesh::DataParallel(1, 3), Strategy::kNoShard}), alone);
  EXPECT_EQ(FingerprintOf({Mesh::DataParallel(1, 4).WithTensor(2)}), alone);
}

TEST(BaseFingerprint, DependsOnWeights) {
  const Case alone{Mesh::DataParallel(1, 1)};
  EXPECT_NE(FingerprintOf(alone), FingerprintOf(alone, 1));
}

}  // namespace
}  // namespace fsdpd
