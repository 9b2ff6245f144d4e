#include "fsdp/optimizer/update_groups.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// Four parameters of 60 elements at offsets of 64: two equal ones between two others.
Bucket FourParams() {
  Bucket bucket;
  const auto add = [&bucket](const char* name, double decay, double lr_scale) {
    const auto slots = static_cast<int64_t>(bucket.params.size());
    bucket.params.push_back({static_cast<int>(slots), name, {60}, decay, lr_scale, slots * 64, 60});
  };
  add("norm", 0, 1);
  add("a", 0.1, 1);
  add("b", 0.1, 1);
  add("norm2", 0, 1);
  bucket.elements = 240;
  bucket.bucket_elements = bucket.shard_elements = bucket.main_elements = 256;
  return bucket;
}

std::vector<std::pair<int64_t, int64_t>> Ends(const UpdateGroup& group) {
  std::vector<std::pair<int64_t, int64_t>> ends;
  for (const BucketRange& run : group.runs) ends.emplace_back(run.begin, run.begin + run.elements);
  return ends;
}

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

TEST(UpdateGroups, MergesAdjacentParameters) {
  const auto groups = UpdateGroupsOf(FourParams(), {0, 256});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].weight_decay, 0);
  EXPECT_EQ(Ends(groups[0]), (Pairs{{0, 60}, {192, 252}}));
  EXPECT_EQ(groups[1].weight_decay, 0.1);
  EXPECT_EQ(Ends(groups[1]), (Pairs{{64, 188}}));
}

TEST(UpdateGroups, OffsetsAreRelativeToTheMainShard) {
  const auto groups = UpdateGroupsOf(FourParams(), {100, 100});  // Begins within a, ends within norm2.
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(Ends(groups[0]), (Pairs{{0, 88}}));
  EXPECT_EQ(Ends(groups[1]), (Pairs{{92, 100}}));
}

TEST(UpdateGroups, SeparatesLearningRates) {
  Bucket bucket = FourParams();
  bucket.params[2].lr_scale = 0.5;
  const auto groups = UpdateGroupsOf(bucket, {0, 256});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(Ends(groups[1]), (Pairs{{64, 124}}));
  EXPECT_EQ(groups[2].lr_scale, 0.5);
  EXPECT_EQ(Ends(groups[2]), (Pairs{{128, 188}}));
}

TEST(UpdateGroups, IsEmptyForPaddingAndFrozenBuckets) {
  Bucket bucket = FourParams();
  EXPECT_TRUE(UpdateGroupsOf(bucket, {252, 4}).empty());
  EXPECT_TRUE(UpdateGroupsOf(bucket, {256, 0}).empty());
  bucket.trainable = false;
  EXPECT_TRUE(UpdateGroupsOf(bucket, {0, 256}).empty());
}

TEST(UpdateGroups, RunsAreViewsOfWholeVectors) {
  const at::Tensor flat = at::arange(60, at::kFloat);
  const UpdateGroup group = {0, 1, {{1, 16}, {20, 32}}};
  const auto runs = RunsOf(group, flat);
  ASSERT_EQ(runs.size(), 2u);
  runs[1].fill_(-1);
  EXPECT_EQ(flat[20].item<float>(), -1);
  EXPECT_EQ(runs[0][1].item<float>(), 2);
  StoreTails(group, runs, flat);  // There are none.
  EXPECT_EQ(flat[19].item<float>(), 19);
}

TEST(UpdateGroups, CopiesTailsAndStoresThemBack) {
  const at::Tensor flat = at::arange(60, at::kFloat);
  const UpdateGroup group = {0, 1, {{1, 3}, {10, 18}, {30, 16}}};
  const auto runs = RunsOf(group, flat);
  ASSERT_EQ(runs.size(), 3u);  // The first run has no whole vector.
  EXPECT_EQ(runs[0][0].item<float>(), 10);
  EXPECT_EQ(runs[0].numel(), 16);
  EXPECT_EQ(runs[1][0].item<float>(), 30);
  const at::Tensor tails = runs[2];
  ASSERT_EQ(tails.numel(), 32);
  EXPECT_EQ(tails[2].item<float>(), 3);
  EXPECT_EQ(tails[3].item<float>(), 0);
  EXPECT_EQ(tails[17].item<float>(), 27);
  tails.fill_(-1);
  EXPECT_EQ(flat[2].item<float>(), 2) << "before it is brought back";
  StoreTails(group, runs, flat);
  EXPECT_EQ(flat.lt(0).sum().item<int64_t>(), 5);
  for (const int i : {1, 2, 3, 26, 27}) EXPECT_EQ(flat[i].item<float>(), -1) << i;
}

TEST(UpdateGroups, InFp32AndStoreBackRoundTrip) {
  const at::Tensor wide = at::full({3}, 1.5f);
  EXPECT_TRUE(InFp32(wide).is_same(wide));
  const at::Tensor narrow = at::full({3}, 1.5f, at::kBFloat16);
  const at::Tensor widened = InFp32(narrow);
  EXPECT_EQ(widened.scalar_type(), at::kFloat);
  WriteBack(widened + 1.0f / 1024, narrow);  // Less than half of bf16's step at 1.5, 1/128.
  EXPECT_EQ(narrow[0].item<float>(), 1.5f);
  WriteBack(widened + 1.0f / 128, narrow);
  EXPECT_EQ(narrow[0].item<float>(), 1.5f + 1.0f / 128);
}

}  // namespace
}  // namespace fsdpd
