#include "fsdp/engine/base_fingerprint.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <thread>

#include "fsdp/comm/connected_mesh.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

struct Case {
  Mesh mesh;
  Strategy strategy = Strategy::kOptimGradsParams;
  LlamaConfig model = SmallLlama();
  DType type = DType::kFp32;
  bool nf4 = false;
};

// The fingerprint of ranks whose weights are `first`, `first` + 1 and so on in each parameter.
std::string FingerprintOf(const Case& c, float first = 0) {
  Spec spec;
  spec.model = c.model;
  spec.data.sequence_length = 16;
  spec.mesh = c.mesh;
  spec.strategy = c.strategy;
  spec.precision.compute = c.type;
  spec.outer_strategy = c.nf4 ? Strategy::kNoShard : Strategy::kOptim;
  spec.lora.nf4 = c.nf4;
  spec.lora.rank = 2;
  spec.lora.alpha = 4;
  const Layout layout = MakeLayout(DescribeSpec(spec), LayoutOptionsOf(spec));
  const auto initial = [&](int, int, int64_t begin, int64_t elements) {
    return at::arange(begin, begin + elements, at::kFloat).add_(first);
  };
  const std::vector<ConnectedMesh> meshes = MakeLocalMesh(c.mesh);
  std::vector<std::string> found(c.mesh.world());
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < c.mesh.world(); ++rank) {
    ranks.emplace_back([&, rank] {
      const MeshPosition position{c.mesh, rank};
      const auto params = ShardedParams::Make(spec, layout, position, at::kCPU, initial);
      ASSERT_TRUE(params.ok()) << params.status();
      const auto made = FingerprintOfBase(layout, position, *params, meshes[rank].all());
      ASSERT_TRUE(made.ok()) << made.status();
      found[rank] = made->Text();
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

TEST(BaseFingerprint, DoesNotDependOnPartitionOfExperts) {
  const LlamaConfig model = SmallDots1();
  const std::string alone =
      FingerprintOf({Mesh::DataParallel(1, 1), Strategy::kNoShard, model, DType::kBf16});
  EXPECT_EQ(alone.substr(0, 5), "bf16 ");
  const Mesh mesh = Mesh::DataParallel(1, 2).WithExpert(2);
  EXPECT_EQ(FingerprintOf({mesh, Strategy::kOptimGradsParams, model, DType::kBf16}), alone);
}

TEST(BaseFingerprint, OfNf4DoesNotDependOnSharding) {
  LlamaConfig model = SmallLlama();
  model.hidden_size = 64;
  model.intermediate_size = 256;
  model.heads = 4;
  model.kv_heads = 1;  // Tensor-parallel ranks have the same key head.
  model.head_size = 64;
  const auto over = [&](const Mesh& mesh) {
    return FingerprintOf({mesh, Strategy::kOptimGradsParams, model, DType::kBf16, /*nf4=*/true});
  };
  const std::string alone = over(Mesh::DataParallel(1, 1));
  EXPECT_EQ(alone.substr(0, 9), "bf16+nf4 ");
  EXPECT_NE(
      alone.substr(9),
      FingerprintOf({Mesh::DataParallel(1, 1), Strategy::kOptimGradsParams, model, DType::kBf16}).substr(5));
  for (const Mesh& mesh : {Mesh::DataParallel(1, 3), Mesh::DataParallel(2, 2),
                           Mesh::DataParallel(1, 4).WithTensor(2), Mesh::DataParallel(1, 4).WithTensor(4)})
    EXPECT_EQ(over(mesh), alone);
}

TEST(BaseFingerprint, DependsOnWeights) {
  const Case alone{Mesh::DataParallel(1, 1)};
  EXPECT_NE(FingerprintOf(alone), FingerprintOf(alone, 1));
}

}  // namespace
}  // namespace fsdpd
