#include "fsdp/engine/operations/gathered_bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "fsdp/comm/local_communicator.h"
#include "fsdp/model/native/native_fp8.h"
#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/torch/nf4.h"

namespace fsdpd {
namespace {

constexpr int kRanks = 3;

// A norm weight, and matrices, one of which is in FP8.
Layout LayoutOver(int ranks) {
  ModelFacts model;
  model.units.resize(1);
  const std::vector<std::vector<int64_t>> shapes = {{32}, {48, 32}, {16, 32}, {32, 16}};
  for (const std::vector<int64_t>& shape : shapes) {
    ParamFacts param;
    param.shape = shape;
    param.fp8 = shape.size() == 2 && shape[1] == 32;
    model.units[0].params.push_back(param);
  }
  LayoutOptions options;
  options.shards = ranks;
  options.types.gathered = DType::kBf16;
  return MakeLayout(model, options);
}

// What every rank holds after all have gathered; stored(range) is what the owner of a range stores.
std::vector<GatheredBucket> Gathered(const Bucket& bucket,
                                     const std::function<at::Tensor(const BucketRange&)>& stored) {
  const auto group = MakeLocalGroup(static_cast<int>(bucket.shards));
  std::vector<GatheredBucket> gathered;
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < bucket.shards; ++rank)
    gathered.emplace_back(bucket, at::zeros({bucket.gathered_bytes()}, at::kByte));
  for (int64_t rank = 0; rank < bucket.shards; ++rank) {
    ranks.emplace_back([&, rank] {
      const BucketRange own = ShardRange(bucket, rank);
      gathered[rank].Write(own, stored(own));
      if (bucket.shards > 1) EXPECT_EQ(gathered[rank].Gather(own, group[rank].get()), absl::OkStatus());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return gathered;
}

std::vector<GatheredBucket> Gathered(const Bucket& bucket, const at::Tensor& main) {
  return Gathered(bucket, [&](const BucketRange& of) { return main.narrow(0, of.begin, of.elements); });
}

TEST(GatheredBucket, GathersQuantizedShards) {
  const Layout layout = LayoutOver(kRanks);
  int in_fp8 = 0;
  for (const Bucket& bucket : layout.buckets) {
    const at::Tensor main = at::randn({bucket.bucket_elements});
    for (const GatheredBucket& gathered : Gathered(bucket, main)) {
      for (const ParamSlot& slot : bucket.params) {
        const at::Tensor want = main.narrow(0, slot.offset, slot.elements).view(slot.shape);
        const BoundParam param = gathered.Param(slot);
        EXPECT_EQ(param.scales.defined(), bucket.in_fp8());
        if (!bucket.in_fp8()) {
          EXPECT_TRUE(param.data.equal(want.to(at::kBFloat16)));
          continue;
        }
        ++in_fp8;
        const Fp8 rounded = Fp8Weights(want);
        EXPECT_TRUE(param.scales.equal(rounded.scales));
        EXPECT_TRUE(param.data.to(at::kFloat).equal(rounded.values.to(at::kFloat)));
      }
    }
  }
  EXPECT_EQ(in_fp8, 2 * kRanks);
}

// The quantization of a value does not depend on shard boundaries.
TEST(GatheredBucket, MatchesOneRank) {
  const Layout one = LayoutOver(1), several = LayoutOver(kRanks);
  const at::Tensor numbers = at::randn({64 * 32});
  const auto all = [&](const Bucket& bucket) {
    const at::Tensor main = at::zeros({bucket.bucket_elements});
    main.narrow(0, 0, numbers.numel()).copy_(numbers);
    return Gathered(bucket, main)[0].Param(bucket.params[1]);
  };
  const BoundParam alone = all(one.buckets[0]), cut = all(several.buckets[0]);
  EXPECT_TRUE(alone.scales.equal(cut.scales));
  EXPECT_TRUE(alone.data.to(at::kFloat).equal(cut.data.to(at::kFloat)));
}

// Sharded or not, units read what NF4 represents.
TEST(GatheredBucket, ConvertsNf4) {
  ModelFacts model;
  model.units.resize(1);
  for (const int64_t rows : {6, 5, 23}) {
    ParamFacts param;
    param.shape = {rows, 64};
    param.trainable = false;
    param.nf4 = true;
    model.units[0].params.push_back(param);
  }
  LayoutOptions options;
  options.types.gathered = DType::kBf16;
  options.lora = true;
  for (const int ranks : {1, 2, kRanks}) {
    options.shards = ranks;
    const Layout layout = MakeLayout(model, options);
    const Bucket& bucket = layout.buckets[0];
    ASSERT_TRUE(layout.buckets.size() == 1 && bucket.in_nf4 && !bucket.read_in_place());
    const at::Tensor numbers = at::randn({bucket.bucket_elements}),
                     blocks = at::empty({Nf4Bytes(bucket.bucket_elements)}, at::kByte);
    QuantizeNf4(numbers, blocks);
    at::Tensor want = at::empty({bucket.bucket_elements}, at::kBFloat16);
    DequantizeNf4(blocks, want);
    const auto part = [&](const BucketRange& of) {
      return blocks.narrow(0, Nf4Bytes(of.begin), Nf4Bytes(of.elements));
    };
    for (const GatheredBucket& gathered : Gathered(bucket, part)) {
      for (const ParamSlot& slot : bucket.params) {
        EXPECT_TRUE(
            gathered.Param(slot).data.equal(want.narrow(0, slot.offset, slot.elements).view(slot.shape)));
      }
    }
  }
}

TEST(GatheredBucket, InPlaceViewsTheStoredParams) {
  const Layout layout = LayoutOver(1);
  Bucket bucket = layout.buckets.back();
  bucket.types.main = bucket.types.gathered;
  const at::Tensor stored = at::randn({bucket.bucket_elements}).to(at::kBFloat16);
  const GatheredBucket gathered = GatheredBucket::InPlace(bucket, stored);
  EXPECT_EQ(gathered.Param(bucket.params[0]).data.data_ptr(), stored.data_ptr());
}

}  // namespace
}  // namespace fsdpd
