#include "fsdp/plan/layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/seeds.h"
#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

ModelFacts OneUnit(const Shapes& shapes) {
  UnitFacts unit;
  unit.name = "unit";
  for (size_t i = 0; i < shapes.size(); ++i) {
    ParamFacts param;
    param.name = "p" + std::to_string(i);
    param.shape = shapes[i];
    unit.params.push_back(param);
  }
  ModelFacts model;
  model.units.push_back(unit);
  return model;
}

LayoutOptions Options(int64_t shards, DType compute = DType::kFp32, int64_t pieces = 1) {
  LayoutOptions options;
  options.shards = shards;
  options.pieces = pieces;
  options.types.gathered = compute;
  return options;
}

// Every element has exactly one owner, and everything is aligned; FP8 matrices are split between rows.
void ExpectSound(const Layout& layout, const LayoutOptions& options) {
  for (const Bucket& bucket : layout.buckets) {
    ASSERT_EQ(bucket.shard_elements, bucket.main_elements * bucket.pieces);
    ASSERT_EQ(bucket.bucket_elements, bucket.shard_elements * bucket.shards);
    ASSERT_EQ(bucket.main_elements * BytesOf(options.types.gathered) % 16, 0);
    std::vector<int64_t> next(bucket.params.size(), 0);
    for (int64_t inner = 0; inner < bucket.shards; ++inner) {
      ASSERT_EQ(ShardRange(bucket, inner).begin, MainRange(bucket, inner, 0).begin);
      for (int64_t outer = 0; outer < bucket.pieces; ++outer) {
        const BucketRange range = MainRange(bucket, inner, outer);
        for (const BucketPiece& piece : PiecesOf(bucket, range)) {
          const ParamSlot& param = bucket.params[piece.slot];
          ASSERT_EQ(piece.param_begin, next[piece.slot]);
          if (bucket.in_fp8()) ASSERT_EQ(piece.param_begin % bucket.row, 0) << param.name;
          ASSERT_GT(piece.elements, 0);
          ASSERT_EQ(range.begin + piece.range_begin, param.offset + piece.param_begin);
          ASSERT_LE(piece.range_begin + piece.elements, range.elements);
          next[piece.slot] += piece.elements;
        }
      }
    }
    int64_t end = 0, elements = 0;
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const ParamSlot& param = bucket.params[i];
      ASSERT_EQ(next[i], param.elements) << param.name;
      ASSERT_GE(param.offset, end) << param.name;
      ASSERT_EQ(param.offset * BytesOf(options.types.gathered) % 256, 0) << param.name;
      end = param.offset + param.elements;
      elements += param.elements;
    }
    ASSERT_EQ(elements, bucket.elements);
    ASSERT_LE(end, bucket.bucket_elements);
  }
}

// ParamPlace and Bucket::params agree in both directions.
void ExpectEachParamOnce(const Layout& layout, const ModelFacts& model) {
  ASSERT_EQ(layout.units.size(), model.units.size());
  size_t slots = 0, params = 0;
  for (const Bucket& bucket : layout.buckets) slots += bucket.params.size();
  for (size_t u = 0; u < model.units.size(); ++u) {
    ASSERT_EQ(layout.units[u].params.size(), model.units[u].params.size());
    for (size_t i = 0; i < model.units[u].params.size(); ++i) {
      const ParamFacts& facts = model.units[u].params[i];
      const ParamPlace place = layout.units[u].params[i];
      const Bucket& bucket = layout.buckets[place.bucket];
      const ParamSlot& slot = bucket.params[place.slot];
      EXPECT_EQ(bucket.unit, static_cast<int>(u));
      EXPECT_EQ(bucket.trainable, facts.trainable);
      EXPECT_EQ(slot.param, static_cast<int>(i));
      EXPECT_EQ(slot.name, facts.name);
      EXPECT_EQ(slot.shape, facts.shape);
      EXPECT_EQ(slot.weight_decay, facts.weight_decay);
      EXPECT_EQ(slot.lr_scale, facts.lr_scale);
      ++params;
    }
  }
  EXPECT_EQ(slots, params);
}

TEST(Layout, AssignsEveryElementOnce) {
  const std::vector<Shapes> models = {{{1}},
                                      {{3}},
                                      {{}},
                                      {{}, {}, {5}},
                                      {{64}},
                                      {{65}, {1}, {1000}},
                                      {{7, 3}},
                                      {{4, 64}, {64}, {64, 4}},
                                      {{129, 5}, {300, 5}, {7}},
                                      {{2, 3, 4}, {5, 12}, {}},
                                      {{130, 8}, {256, 16}, {3, 24}, {9}},
                                      {{0, 4}, {3}}};
  for (const Shapes& shapes : models) {
    for (const int64_t shards : {1, 2, 3, 4, 7, 8, 64}) {
      for (const int64_t pieces : {1, 2, 3}) {
        for (const DType compute : {DType::kFp32, DType::kBf16}) {
          const LayoutOptions options = Options(shards, compute, pieces);
          const Layout layout = MakeLayout(OneUnit(shapes), options);
          ExpectSound(layout, options);
          ExpectEachParamOnce(layout, OneUnit(shapes));
          if (HasFatalFailure()) FAIL() << shards << " shards";
        }
      }
    }
  }
}

TEST(Layout, RandomModelsHaveValidLayouts) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < Seeds(2000); ++round) {
    Shapes shapes;
    for (int64_t i = pick(1, 9); i > 0; --i) {
      std::vector<int64_t> shape;
      for (int64_t d = pick(0, 3); d > 0; --d) shape.push_back(pick(0, 3) == 0 ? pick(1, 400) : pick(1, 12));
      shapes.push_back(shape);
    }
    ModelFacts model = OneUnit(shapes);
    for (ParamFacts& param : model.units[0].params) {
      param.trainable = pick(0, 3) > 0;
      param.fp8 = param.shape.size() > 1 && pick(0, 2) == 0;
    }
    const LayoutOptions options =
        Options(pick(1, 20), pick(0, 1) == 0 ? DType::kFp32 : DType::kBf16, pick(1, 4));
    ExpectSound(MakeLayout(model, options), options);
    ExpectEachParamOnce(MakeLayout(model, options), model);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST(Layout, SmallParameterLeavesShardsEmpty) {
  const Layout layout = MakeLayout(OneUnit({{3}}), Options(8));
  const Bucket& bucket = layout.buckets[0];
  EXPECT_EQ(PiecesOf(bucket, ShardRange(bucket, 0)).size(), 1u);
  for (int64_t shard = 1; shard < 8; ++shard) {
    EXPECT_TRUE(PiecesOf(bucket, ShardRange(bucket, shard)).empty()) << shard;
  }
}

TEST(Layout, FrozenParametersHaveOwnBucket) {
  ModelFacts model = OneUnit({{8, 8}, {8}, {16, 8}});
  model.units[0].params[1].trainable = false;
  const Layout layout = MakeLayout(model, Options(2));
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_TRUE(layout.buckets[0].trainable);
  EXPECT_FALSE(layout.buckets[1].trainable);
  EXPECT_EQ(layout.buckets[1].params[0].name, "p1");
  EXPECT_EQ(layout.units[0].params[1].bucket, 1);
}

TEST(Layout, SelectionBiasHasOwnFp32Bucket) {
  ModelFacts model = OneUnit({{8, 8}, {6}, {16, 8}, {8}});
  for (const int fixed : {1, 3}) model.units[0].params[fixed].trainable = false;
  model.units[0].params[1].choices_begin = 12;
  model.choices = 18;
  LayoutOptions options = Options(2, DType::kBf16);
  options.types.split_fp32 = true;
  const Layout layout = MakeLayout(model, options);
  EXPECT_EQ(layout.choices, 18);
  ASSERT_EQ(layout.buckets.size(), 3u);
  const Bucket &frozen = layout.buckets[1], &balances = layout.buckets[2];
  EXPECT_FALSE(frozen.is_updated() || frozen.is_selection_bias());
  EXPECT_EQ(frozen.types.gathered, DType::kBf16);
  EXPECT_TRUE(balances.is_updated() && balances.is_selection_bias() && !balances.trainable);
  EXPECT_EQ(balances.params[0].name, "p1");
  EXPECT_EQ(balances.choices_begin, 12);
  EXPECT_EQ(balances.types.gathered, DType::kFp32);
  EXPECT_FALSE(balances.types.split_fp32);
  EXPECT_EQ(balances.main_elements, 4);  // Six, as two times 16 bytes.
  EXPECT_EQ(layout.units[0].params[1].bucket, 2);
}

// A bucket has rows of one length, each whole on one rank; scales follow, in slot order.
TEST(Layout, Fp8BucketsAreByRowLength) {
  ModelFacts model = OneUnit({{48, 32}, {32}, {16, 32}, {32, 48}, {16, 32}});
  for (const int fp8 : {0, 2, 3}) model.units[0].params[fp8].fp8 = true;
  LayoutOptions options = Options(3, DType::kBf16, 2);
  options.types.split_fp32 = true;
  const Layout layout = MakeLayout(model, options);
  ExpectEachParamOnce(layout, model);
  ASSERT_EQ(layout.buckets.size(), 3u);
  const Bucket &narrow = layout.buckets[0], &wide = layout.buckets[1], &rest = layout.buckets[2];
  EXPECT_EQ(narrow.row, 32);
  EXPECT_EQ(wide.row, 48);
  EXPECT_EQ(rest.params.size(), 2u);
  EXPECT_FALSE(rest.in_fp8());
  for (const Bucket* bucket : {&narrow, &wide}) {
    EXPECT_TRUE(bucket->in_fp8() && bucket->types.split_fp32);
    EXPECT_EQ(bucket->types.replica(), DType::kBf16);
    EXPECT_EQ(bucket->replica_bytes(), 2 * bucket->shard_elements);
    EXPECT_EQ(bucket->main_elements % bucket->row, 0);
    EXPECT_EQ(bucket->main_elements % 16, 0);
    EXPECT_EQ(bucket->scales() * bucket->row, bucket->bucket_elements);
    EXPECT_EQ(bucket->gathered_bytes(), bucket->scales_begin() + 4 * bucket->scales());
    EXPECT_GE(bucket->scales_begin(), bucket->bucket_elements);
  }
  EXPECT_EQ(narrow.params[1].offset, 48 * 32);  // Adjacent, so they run as one product.
  EXPECT_EQ(narrow.main_elements, 11 * 32);     // 64 rows over six.
}

// Llama 8B layer: rows of different lengths do not share a bucket.
TEST(Layout, Fp8BucketsArePaddedToWholeRows) {
  ModelFacts model = OneUnit({{4096}, {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}});
  for (size_t i = 1; i < model.units[0].params.size(); ++i) model.units[0].params[i].fp8 = true;
  for (const int64_t shards : {2, 8, 64, 512, 1024})
    EXPECT_LT(MakeLayout(model, Options(shards, DType::kBf16)).padding_ratio(), 0.01) << shards;
  EXPECT_NEAR(MakeLayout(model, Options(768, DType::kBf16)).padding_ratio(), 0.038, 0.001);
}

// It is quantized before it is read.
TEST(Layout, Fp8IsNotReadInPlaceOnOneRank) {
  ModelFacts model = OneUnit({{48, 32}, {16, 16}});
  model.units[0].params[0].fp8 = true;
  LayoutOptions options = Options(1, DType::kBf16);
  options.types.split_fp32 = true;
  const Layout layout = MakeLayout(model, options);
  EXPECT_FALSE(layout.buckets[0].read_in_place());
  EXPECT_EQ(layout.buckets[0].gather_buffer_bytes(), 48 * 32 + 48 * 4);
  EXPECT_TRUE(layout.buckets[1].read_in_place());
}

TEST(Layout, KeepsOrderInOneBucket) {
  const Layout layout = MakeLayout(OneUnit({{3}, {8, 8}, {}, {4, 2}}), Options(4, DType::kBf16));
  ASSERT_EQ(layout.buckets.size(), 1u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(layout.buckets[0].params[i].param, i);
}

TEST(Layout, SingleRankPadsOnlyBetweenParameters) {
  const Layout layout = MakeLayout(OneUnit({{128, 3}, {128, 5}}), Options(1));
  ASSERT_EQ(layout.buckets.size(), 1u);
  EXPECT_EQ(layout.buckets[0].main_elements, layout.elements());
}

TEST(Layout, UnitsKeepBorrowedParameters) {
  ModelFacts model;
  model.units.resize(2);
  model.units[1].borrows = 0;
  const Layout layout = MakeLayout(model, Options(2));
  EXPECT_EQ(layout.units[0].borrows, -1);
  EXPECT_EQ(layout.units[1].borrows, 0);
  EXPECT_TRUE(layout.buckets.empty());  // No own parameters, no bucket.
}

TEST(Layout, UsesMeshOfSpec) {
  Spec spec;
  spec.mesh = Mesh::DataParallel(1, 8);
  spec.mesh = spec.mesh.WithReplicas(2);
  spec.precision.compute = DType::kBf16;
  EXPECT_EQ(LayoutOptionsOf(spec).shards, 4);
  EXPECT_EQ(LayoutOptionsOf(spec).pieces, 1);
  EXPECT_EQ(LayoutOptionsOf(spec).types.gathered, DType::kBf16);
  spec.outer_strategy = Strategy::kOptim;
  EXPECT_EQ(LayoutOptionsOf(spec).pieces, 2);
  spec.mesh = spec.mesh.WithReplicas(1);
  spec.outer_strategy = Strategy::kNoShard;
  spec.strategy = Strategy::kNoShard;
  EXPECT_EQ(LayoutOptionsOf(spec).shards, 1);
}

TEST(Layout, UsesSplitFp32ForBf16GatherOnCuda) {
  Spec spec;
  spec.precision.compute = DType::kBf16;
  EXPECT_FALSE(LayoutOptionsOf(spec).types.split_fp32);
  spec.device = DeviceKind::kCuda;
  EXPECT_TRUE(LayoutOptionsOf(spec).types.split_fp32);
  for (const DType other : {DType::kFp32, DType::kFp16}) {
    spec.precision.compute = other;
    EXPECT_FALSE(LayoutOptionsOf(spec).types.split_fp32);
  }
  spec.precision.compute = DType::kBf16;
  spec.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_FALSE(LayoutOptionsOf(spec).types.split_fp32);
}

TEST(Layout, FusesSquaresWithFinalNarrowSums) {
  Spec spec;
  spec.mesh = Mesh::DataParallel(1, 4);
  spec.device = DeviceKind::kCuda;
  const auto squares = [&spec](DType wire) {
    Bucket bucket;
    bucket.groups = LayoutOptionsOf(spec).groups;
    bucket.types.grad_comm = wire;
    return SquaresComeWithSums(spec, bucket);
  };
  EXPECT_TRUE(squares(DType::kBf16));
  EXPECT_TRUE(squares(DType::kFp16));
  EXPECT_FALSE(squares(DType::kFp32));
  spec.mesh = spec.mesh.WithReplicas(2);
  EXPECT_FALSE(squares(DType::kBf16));
  spec.mesh = spec.mesh.WithReplicas(1);
  spec.device = DeviceKind::kCpu;
  EXPECT_FALSE(squares(DType::kBf16));
}

// Matrices of one layer, from the model cards.

Shapes Qwen3MoeLayer() {  // Qwen3-30B-A3B.
  Shapes shapes = {{2048}, {4096, 2048}, {512, 2048}, {512, 2048}, {128},
                   {128},  {2048, 4096}, {2048},      {128, 2048}};
  for (int expert = 0; expert < 128; ++expert) {
    shapes.insert(shapes.end(), {{768, 2048}, {768, 2048}, {2048, 768}});
  }
  return shapes;
}

Shapes DeepSeekAttention() {  // DeepSeek-V3.
  return {{7168}, {1536, 7168}, {1536},        {24576, 1536}, {576, 7168},
          {512},  {32768, 512}, {7168, 16384}, {7168}};
}

Shapes DeepSeekDenseLayer() {
  Shapes shapes = DeepSeekAttention();
  shapes.insert(shapes.end(), {{18432, 7168}, {18432, 7168}, {7168, 18432}});
  return shapes;
}

Shapes DeepSeekMoeLayer() {
  Shapes shapes = DeepSeekAttention();
  shapes.insert(shapes.end(), {{256, 7168}, {256}});
  for (int expert = 0; expert < 257; ++expert) {  // 256 routed ones and one shared.
    shapes.insert(shapes.end(), {{2048, 7168}, {2048, 7168}, {7168, 2048}});
  }
  return shapes;
}

struct RealModel {
  const char* name;
  ModelFacts facts;
};

std::vector<RealModel> RealModels() {
  return {{"llama3-8b", DescribeModel(*FindPreset("llama3-8b"), 1, 1, DType::kBf16)},
          {"llama3-70b", DescribeModel(*FindPreset("llama3-70b"), 1, 1, DType::kBf16)},
          {"qwen3-30b-a3b layer", OneUnit(Qwen3MoeLayer())},
          {"deepseek-v3 dense layer", OneUnit(DeepSeekDenseLayer())},
          {"deepseek-v3 moe layer", OneUnit(DeepSeekMoeLayer())}};
}

TEST(Layout, PadsRealModelsByLessThanOnePercent) {
  for (const RealModel& model : RealModels()) {
    for (const int64_t shards : {8, 64, 1024}) {
      const LayoutOptions options = Options(shards, DType::kBf16);
      const Layout layout = MakeLayout(model.facts, options);
      ExpectSound(layout, options);
      EXPECT_EQ(layout.elements(), model.facts.elements());
      EXPECT_GE(layout.padding_ratio(), 0);
      EXPECT_LE(layout.padding_ratio(), 0.01) << model.name << " over " << shards;
    }
  }
}

// Half of one matrix's rows and half of another's columns; norms whole.
ModelFacts ModelOfSlices() {
  UnitFacts unit{"layer.0", UnitKind::kBlock, {}};
  unit.params.push_back({"rows", {4, 8}});
  unit.params.push_back({"norm", {8}});
  unit.params.push_back({"columns", {8, 4}});
  unit.params[0].partition = {0, 2};
  unit.params[2].partition = {1, 2};
  return {{unit}};
}

TEST(Layout, ShardsTensorParallelShardsSeparately) {
  Spec spec;
  spec.strategy = Strategy::kOptimGradsParams;
  spec.mesh = Mesh::DataParallel(2, 12).WithContext(3).WithTensor(2);
  const Layout layout = MakeLayout(ModelOfSlices(), LayoutOptionsOf(spec));
  ASSERT_EQ(layout.buckets.size(), 2u);
  const Bucket &slices = layout.buckets[0], &whole = layout.buckets[1];
  EXPECT_EQ(slices.params.size(), 2u);
  EXPECT_EQ(slices.groups.shard, Group::kShard);
  EXPECT_EQ(slices.groups.reduce, Group::kShard);
  EXPECT_EQ(slices.groups.slices, Group::kTensor);
  EXPECT_EQ(slices.shards, 6);
  EXPECT_EQ(whole.params[0].name, "norm");
  EXPECT_EQ(whole.groups.shard, Group::kReplica);
  EXPECT_EQ(whole.groups.reduce, Group::kReplica);
  EXPECT_EQ(whole.groups.slices, Group::kSelf);
  EXPECT_EQ(whole.shards, 12);
  EXPECT_EQ(slices.owners(), whole.owners());
  EXPECT_EQ(layout.elements(), 8 * 8 + 8 + 8 * 8);
  // Each main piece has one first copy, in the first replica.
  for (const Bucket& bucket : layout.buckets) {
    std::set<std::pair<int64_t, int64_t>> owners;
    for (int64_t rank = 0; rank < 24; ++rank) {
      const MeshPosition at{spec.mesh, rank};
      EXPECT_EQ(HasFirstCopy(bucket, at), rank < 12);
      if (rank < 12) owners.emplace(at.IndexIn(bucket.groups.slices), at.IndexIn(bucket.groups.shard));
    }
    EXPECT_EQ(owners.size(), 12u);
  }
}

TEST(Layout, NoShardHasOneOwnerPerTensorParallelShard) {
  Spec spec;
  spec.strategy = Strategy::kNoShard;
  spec.mesh = Mesh::DataParallel(1, 4).WithTensor(2);
  const Layout layout = MakeLayout(ModelOfSlices(), LayoutOptionsOf(spec));
  std::vector<int> first_copies;
  for (const Bucket& bucket : layout.buckets) {
    int copies = 0;
    for (int64_t rank = 0; rank < 4; ++rank) copies += HasFirstCopy(bucket, {spec.mesh, rank}) ? 1 : 0;
    first_copies.push_back(copies);
    EXPECT_EQ(bucket.groups.reduce, bucket.slices > 1 ? Group::kShard : Group::kReplica);
  }
  EXPECT_EQ(first_copies, (std::vector<int>{2, 1}));
}

}  // namespace
}  // namespace fsdpd
