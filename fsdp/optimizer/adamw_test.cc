#include "fsdp/optimizer/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/optimizer/fp8_moments.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/optimizer/testing/step_scalars.h"

namespace fsdpd {
namespace {

constexpr int64_t kElements = 200;

// Elements 0 to 69 without decay, 70 to 149 with decay at half the rate, then padding and a last run without
// decay.
std::vector<std::vector<UpdateGroup>> TwoGroups() {
  return {{{0, 1, {{0, 70}, {160, 40}}}, {0.1, 0.5, {{70, 80}}}}};
}

BucketShard MakeShard(at::ScalarType moments = at::kFloat) {
  const auto options = at::TensorOptions().dtype(moments);
  BucketShard shard;
  shard.main = at::randn({kElements});
  shard.moments = {at::zeros({kElements}, options), at::zeros({kElements}, options)};
  return shard;
}

BucketShard Copy(const BucketShard& shard) {
  BucketShard copy;
  copy.main = shard.main.clone();
  for (const at::Tensor& moment : shard.moments) copy.moments.push_back(moment.clone());
  return copy;
}

bool SameBits(const BucketShard& a, const BucketShard& b) {
  bool same = a.main.equal(b.main);
  for (size_t i = 0; i < a.moments.size(); ++i) same = same && a.moments[i].equal(b.moments[i]);
  return same;
}

void Step(AdamW& adamw, int step, const BucketShard& shard, double divisor = 1,
          bool found_nonfinite = false) {
  adamw.BeginStep(step);
  const StepScalars scalars = ScalarsOf(1e-2, divisor, found_nonfinite);
  adamw.Count(scalars);
  adamw.Update(0, shard, scalars);
}

// AdamW as in its paper and PyTorch's documentation, in double precision.
struct Reference {
  double param, exp_avg = 0, exp_avg_sq = 0;

  void Step(const OptimizerConfig& config, int step, double lr, double decay, double grad) {
    param -= lr * decay * param;
    exp_avg = config.beta1 * exp_avg + (1 - config.beta1) * grad;
    exp_avg_sq = config.beta2 * exp_avg_sq + (1 - config.beta2) * grad * grad;
    const double corrected = exp_avg / (1 - std::pow(config.beta1, step));
    const double denominator = std::sqrt(exp_avg_sq / (1 - std::pow(config.beta2, step))) + config.eps;
    param -= lr * corrected / denominator;
  }
};

std::vector<Reference> ReferencesOf(const at::Tensor& main) {
  std::vector<Reference> references;
  for (int64_t i = 0; i < main.numel(); ++i) references.push_back({main[i].item<double>()});
  return references;
}

TEST(AdamW, MatchesTheFormulaInDouble) {
  const OptimizerConfig config;
  BucketShard shard = MakeShard();
  const at::Tensor before = shard.main.clone();
  std::vector<Reference> references = ReferencesOf(shard.main);
  AdamW adamw(config, TwoGroups(), at::kCPU);
  for (int step = 1; step <= 10; ++step) {
    const double lr = 1e-2 / step;
    const double divisor = step % 2 == 0 ? 4 : 1;
    shard.grad = at::randn({kElements});
    for (int i = 0; i < kElements; ++i) {
      const bool decays = i >= 70 && i < 150;
      references[i].Step(config, step, decays ? lr / 2 : lr, decays ? 0.1 : 0,
                         shard.grad[i].item<double>() / divisor);
    }
    adamw.BeginStep(step);
    adamw.Count(ScalarsOf(lr, divisor));
    adamw.Update(0, shard, ScalarsOf(lr, divisor));
  }
  for (int i = 0; i < kElements; ++i) {
    if (i >= 150 && i < 160) {
      EXPECT_EQ(shard.main[i].item<float>(), before[i].item<float>()) << "no run covers " << i;
    } else {
      EXPECT_NEAR(shard.main[i].item<double>(), references[i].param, 1e-6) << i;
    }
  }
}

// Three steps of torch.optim.AdamW(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1) in float64.
TEST(AdamW, MatchesTorchOptim) {
  BucketShard shard;
  shard.main = at::tensor({1.0f, -2.0f, 0.5f});
  shard.moments = {at::zeros({3}), at::zeros({3})};
  AdamW adamw(OptimizerConfig{}, {{{0.1, 1, {{0, 3}}}}}, at::kCPU);
  for (int step = 1; step <= 3; ++step) {
    shard.grad = at::tensor({1.0f, -3.0f, 0.25f}) * step;
    adamw.BeginStep(step);
    adamw.Count(ScalarsOf(0.1));
    adamw.Update(0, shard, ScalarsOf(0.1));
  }
  EXPECT_NEAR(shard.main[0].item<double>(), 0.682997415899, 1e-6);
  EXPECT_NEAR(shard.main[1].item<double>(), -1.653296414561, 1e-6);
  EXPECT_NEAR(shard.main[2].item<double>(), 0.197847921918, 1e-6);
}

TEST(AdamW, SkippedStepIsNotCounted) {
  BucketShard skipping = MakeShard();
  BucketShard straight = Copy(skipping);
  AdamW skipper({}, TwoGroups(), at::kCPU);
  AdamW reference({}, TwoGroups(), at::kCPU);
  int taken = 0;
  for (int step = 1; step <= 6; ++step) {
    const bool skip = step == 1 || step == 4;  // The first, before there is any state, and a later one.
    const at::Tensor grad = at::randn({kElements});
    const BucketShard before = Copy(skipping);
    skipping.grad = skip ? grad / 0.0f : grad.clone();
    Step(skipper, step, skipping, 2, skip);
    EXPECT_EQ(SameBits(before, skipping), skip);
    if (skip) continue;
    straight.grad = grad.clone();
    Step(reference, ++taken, straight, 2);
  }
  EXPECT_TRUE(SameBits(skipping, straight));
}

TEST(AdamW, SkippedStepKeepsNarrowMoments) {
  BucketShard shard = MakeShard(at::kBFloat16);
  AdamW adamw({}, TwoGroups(), at::kCPU);
  shard.grad = at::randn({kElements});
  Step(adamw, 1, shard);
  const BucketShard before = Copy(shard);
  shard.grad = at::full({kElements}, std::numeric_limits<float>::infinity());
  Step(adamw, 2, shard, 1, true);
  EXPECT_TRUE(SameBits(before, shard));
}

TEST(AdamW, RoundsNarrowMomentsAfterEachStep) {
  BucketShard narrow = MakeShard(at::kBFloat16);
  BucketShard wide = Copy(narrow);
  for (at::Tensor& moment : wide.moments) moment = moment.to(at::kFloat);
  AdamW narrow_adamw({}, TwoGroups(), at::kCPU);
  AdamW wide_adamw({}, TwoGroups(), at::kCPU);
  for (int step = 1; step <= 3; ++step) {
    const at::Tensor grad = at::randn({kElements});
    narrow.grad = grad.clone();
    wide.grad = grad.clone();
    Step(narrow_adamw, step, narrow);
    Step(wide_adamw, step, wide);
    EXPECT_FALSE(wide.moments[0].equal(narrow.moments[0].to(at::kFloat)));
    for (at::Tensor& moment : wide.moments) moment = moment.to(at::kBFloat16).to(at::kFloat);
    EXPECT_TRUE(wide.main.equal(narrow.main));
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(wide.moments[i].equal(narrow.moments[i].to(at::kFloat)));
  }
}

TEST(AdamW, QuantizesFp8MomentsAfterEachStep) {
  BucketShard narrow = MakeShard(at::kByte);
  BucketShard wide = Copy(narrow);
  for (at::Tensor& moment : wide.moments) moment = moment.to(at::kFloat);
  AdamW narrow_adamw({}, TwoGroups(), at::kCPU);
  AdamW wide_adamw({}, TwoGroups(), at::kCPU);
  for (int step = 1; step <= 4; ++step) {
    const bool skip = step == 3;
    const at::Tensor grad = at::randn({kElements});
    const BucketShard before = Copy(narrow);
    narrow.grad = grad.clone();
    wide.grad = grad.clone();
    Step(narrow_adamw, step, narrow, 2, skip);
    Step(wide_adamw, step, wide, 2, skip);
    EXPECT_TRUE(wide.main.equal(narrow.main));
    EXPECT_EQ(SameBits(before, narrow), skip);
    for (int i = 0; i < 2; ++i) {
      const at::Tensor stored = WidenMoments(narrow.moments[i], i);
      // Two mantissa bits: within a quarter of the value.
      EXPECT_LE(
          (stored - wide.moments[i]).abs().div(wide.moments[i].abs().clamp_min(1e-8)).max().item<double>(),
          0.25);
      wide.moments[i] = stored;
    }
  }
}

TEST(AdamW, AcceptsNarrowGradients) {
  BucketShard narrow = MakeShard();
  BucketShard wide = Copy(narrow);
  AdamW narrow_adamw({}, TwoGroups(), at::kCPU);
  AdamW wide_adamw({}, TwoGroups(), at::kCPU);
  narrow.grad = at::randn({kElements}).to(at::kBFloat16);
  wide.grad = narrow.grad.to(at::kFloat);
  Step(narrow_adamw, 1, narrow, 3);
  Step(wide_adamw, 1, wide, 3);
  EXPECT_TRUE(SameBits(narrow, wide));
}

TEST(AdamW, IgnoresPaddingOnlyBuckets) {
  AdamW three_buckets({}, {{}, TwoGroups()[0], TwoGroups()[0]}, at::kCPU);
  AdamW one_bucket({}, TwoGroups(), at::kCPU);
  const BucketShard padding = MakeShard();
  const BucketShard before = Copy(padding);
  BucketShard first = MakeShard();
  BucketShard second = Copy(first);
  BucketShard alone = Copy(first);
  for (int step = 1; step <= 2; ++step) {
    const at::Tensor grad = at::randn({kElements});
    three_buckets.BeginStep(step);
    three_buckets.Count(ScalarsOf(1e-2));
    int bucket = 0;
    for (BucketShard shard : {padding, first, second}) {
      shard.grad = grad.clone();
      three_buckets.Update(bucket++, shard, ScalarsOf(1e-2));
    }
    alone.grad = grad.clone();
    Step(one_bucket, step, alone);
  }
  EXPECT_TRUE(SameBits(padding, before));
  EXPECT_TRUE(SameBits(first, alone));
  EXPECT_TRUE(SameBits(second, alone));
}

// LibTorch's kernel rounds differently at the end of a tensor: 1080 of the 1711 splits up to 60 elements
// differed.
TEST(AdamW, IsIndependentOfSharding) {
  const auto group = [](int64_t elements) { return std::vector<UpdateGroup>{{0.1, 1, {{0, elements}}}}; };
  const auto part = [](const BucketShard& of, int64_t begin, int64_t elements) {
    BucketShard shard = {of.main.narrow(0, begin, elements), {}, of.grad.narrow(0, begin, elements)};
    for (const at::Tensor& moment : of.moments) shard.moments.push_back(moment.narrow(0, begin, elements));
    return shard;
  };
  for (int64_t n = 1; n <= 100; ++n) {
    const BucketShard start = {at::randn({n}), {at::zeros({n}), at::zeros({n})}, {}};
    const at::Tensor grads[] = {at::randn({n}), at::randn({n})};
    BucketShard whole = Copy(start);
    AdamW adamw({}, {group(n)}, at::kCPU);
    for (int step = 1; step <= 2; ++step) {
      whole.grad = grads[step - 1].clone();
      Step(adamw, step, whole, 3);
    }
    for (int64_t cut = 1; cut < n; ++cut) {
      BucketShard both = Copy(start);
      AdamW two({}, {group(cut), group(n - cut)}, at::kCPU);
      for (int step = 1; step <= 2; ++step) {
        both.grad = grads[step - 1].clone();
        two.BeginStep(step);
        two.Count(ScalarsOf(1e-2, 3));
        two.Update(0, part(both, 0, cut), ScalarsOf(1e-2, 3));
        two.Update(1, part(both, cut, n - cut), ScalarsOf(1e-2, 3));
      }
      ASSERT_TRUE(SameBits(whole, both)) << n << " elements cut at " << cut;
    }
  }
}

TEST(AdamW, BiasCorrectionStartsAtTheFirstStep) {
  BucketShard shard = MakeShard();
  std::vector<Reference> references = ReferencesOf(shard.main);
  shard.grad = at::randn({kElements});
  for (int i = 0; i < 70; ++i) references[i].Step({}, 7, 1e-2, 0, shard.grad[i].item<double>());
  AdamW adamw({}, TwoGroups(), at::kCPU);
  Step(adamw, 7, shard);
  for (int i = 0; i < 70; ++i) EXPECT_NEAR(shard.main[i].item<double>(), references[i].param, 1e-6) << i;
}

}  // namespace
}  // namespace fsdpd
