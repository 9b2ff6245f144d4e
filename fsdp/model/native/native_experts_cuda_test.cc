// CUDA kernels of experts compared with the CPU implementation in double precision, in every type: LibTorch's
// grouped product and the plain kernel, with experts that have no rows, all rows or all tokens. Skipped
// without a GPU.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/model/native/native_experts.h"
#include "fsdp/model/native/native_router.h"
#include "fsdp/model/native/native_rows.h"
#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

struct Chosen {
  at::Tensor choices;  // [tokens x per_token]
  int64_t experts;
};

// Routes every token to all experts.
at::Tensor All(int64_t tokens, int64_t experts) {
  return at::arange(experts).repeat({tokens, 1}).contiguous();
}

std::vector<Chosen> Choices() {
  return {{at::randint(7, {61, 3}, at::kLong), 7},
          {at::randint(128, {3000, 8}, at::kLong), 128},  // Several blocks of choices.
          {at::randint(100, {5, 2}, at::kLong), 300},     // Most experts have no choice.
          {at::full({77, 1}, 4, at::kLong), 6},           // One expert has all choices.
          {All(33, 5), 5},
          {at::randint(2, {1, 1}, at::kLong), 2}};
}

class NativeExpertsCuda : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  }

  static at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape).to(GetParam()); }
  static at::Tensor Exact(const at::Tensor& x) { return x.to(at::kDouble); }

  static void ExpectNear(const at::Tensor& cuda, const at::Tensor& exact) {
    ASSERT_EQ(cuda.sizes(), exact.sizes());
    ASSERT_FALSE(cuda.isnan().any().item<bool>());
    const double bound = GetParam() == at::kFloat ? 5e-6 : GetParam() == at::kHalf ? 1e-3 : 8e-3;
    const double norm = exact.norm().item<double>();
    EXPECT_LE((cuda.cpu().to(at::kDouble) - exact).norm().item<double>(), bound * norm + 1e-12);
  }
};

TEST_P(NativeExpertsCuda, PlacesEqualCpu) {
  for (const Chosen& chosen : Choices()) {
    for (const int64_t step : {int64_t{1}, kExpertRowStep}) {
      const RowPlaces cpu = PlaceRows(chosen.choices, chosen.experts, step);
      const RowPlaces cuda = PlaceRows(chosen.choices.cuda(), chosen.experts, step);
      EXPECT_TRUE(cuda.order.cpu().equal(cpu.order));
      EXPECT_TRUE(cuda.of_choice.cpu().equal(cpu.of_choice));
      EXPECT_TRUE(cuda.ends.cpu().equal(cpu.ends));
    }
  }
}

// A subset of the experts; then with too little capacity, which must count the overflow and write nothing
// past it.
TEST_P(NativeExpertsCuda, PlacesOfExpertSubsetEqualCpu) {
  for (const Chosen& chosen : Choices()) {
    for (const int64_t experts : {int64_t{1}, chosen.experts / 2 + 1}) {
      RowsHere here = {chosen.experts - experts, experts, kExpertRowStep, chosen.choices.numel(),
                       at::zeros({}, at::kFloat)};
      here.capacity = chosen.choices.ge(here.first).sum().item<int64_t>();  // Exactly enough.
      const RowPlaces cpu = PlaceRows(chosen.choices, here);
      const at::Tensor overflow = here.overflow = here.overflow.cuda();
      const RowPlaces cuda = PlaceRows(chosen.choices.cuda(), here);
      EXPECT_TRUE(cuda.order.cpu().equal(cpu.order));
      EXPECT_TRUE(cuda.of_choice.cpu().equal(cpu.of_choice));
      EXPECT_TRUE(cuda.ends.cpu().equal(cpu.ends));
      EXPECT_EQ(overflow.item<float>(), 0);
      const at::Tensor tokens = Random({chosen.choices.size(0), 40}), rows = Random({cpu.order.size(0), 40});
      const int64_t per_token = chosen.choices.size(1);
      EXPECT_TRUE(GatherRows(tokens.cuda(), cuda.order, per_token)
                      .cpu()
                      .equal(GatherRows(tokens, cpu.order, per_token)));
      const at::Tensor into = at::empty_like(tokens).cuda();
      SumOfRowsInto({rows.cuda()}, cuda.of_choice, per_token, into);
      ExpectNear(into, SumOfRows({Exact(rows)}, cpu.of_choice, per_token));
      ExpectNear(GatherRows(rows.cuda(), cuda.of_choice), Exact(GatherRows(rows, cpu.of_choice)));

      here.capacity = 0;
      const RowPlaces less = PlaceRows(chosen.choices.cuda(), here);
      const auto capacity = less.order.size(0), wanted = cpu.ends[-1].item<int64_t>();
      EXPECT_EQ(overflow.item<float>(), std::max<int64_t>(0, wanted - capacity));
      EXPECT_LE(less.ends.max().item<int64_t>(), capacity);
      EXPECT_LT(less.of_choice.max().item<int64_t>(), capacity);
    }
  }
}

// Capacity for all choices, for an even distribution, and for one row.
TEST_P(NativeExpertsCuda, PlacesInPartsEqualCpu) {
  for (const Chosen& chosen : Choices()) {
    const int64_t all = chosen.choices.numel();
    for (const int64_t capacity : {all + 1, std::max<int64_t>(1, all / chosen.experts), int64_t{1}}) {
      const at::Tensor overflow = at::zeros({}, at::kFloat), on_cuda = overflow.cuda();
      const RowPlaces cpu = PlaceInParts(chosen.choices, chosen.experts, capacity, overflow);
      const RowPlaces cuda = PlaceInParts(chosen.choices.cuda(), chosen.experts, capacity, on_cuda);
      EXPECT_TRUE(cuda.order.cpu().equal(cpu.order));
      EXPECT_TRUE(cuda.of_choice.cpu().equal(cpu.of_choice));
      EXPECT_TRUE(cuda.ends.cpu().equal(cpu.ends));
      EXPECT_EQ(on_cuda.item<float>(), overflow.item<float>());
      EXPECT_EQ(cpu.of_choice.lt(0).sum().item<float>(), overflow.item<float>());
    }
  }
}

TEST_P(NativeExpertsCuda, GatheredAndSummedRowsEqualCpu) {
  for (const Chosen& chosen : Choices()) {
    const int64_t tokens = chosen.choices.size(0), per_token = chosen.choices.size(1);
    for (const int64_t width : {1, 12, 100, 1024}) {
      const RowPlaces cpu = PlaceRows(chosen.choices, chosen.experts, kExpertRowStep);
      const RowPlaces cuda = PlaceRows(chosen.choices.cuda(), chosen.experts, kExpertRowStep);
      const at::Tensor x = Random({tokens, width});
      const at::Tensor rows = GatherRows(x.cuda(), cuda.order, per_token);
      EXPECT_TRUE(rows.cpu().equal(GatherRows(x, cpu.order, per_token)));
      const at::Tensor values = Random(rows.sizes()), addend = Random({tokens, width});
      const at::Tensor want = SumOfRows({Exact(values)}, cpu.of_choice, per_token);
      const at::Tensor sum = SumOfRows({values.cuda()}, cuda.of_choice, per_token);
      ExpectNear(SumOfRows({values.cuda(), 2 * values.cuda()}, cuda.of_choice, per_token), 3 * want);
      EXPECT_EQ(sum.scalar_type(), at::kFloat);
      ExpectNear(sum, want);
      const at::Tensor with = SumOfRows({values.cuda()}, cuda.of_choice, per_token, addend.cuda());
      EXPECT_EQ(with.scalar_type(), GetParam());
      ExpectNear(with, want + Exact(addend));
      EXPECT_TRUE(with.equal(SumOfRows({values.cuda()}, cuda.of_choice, per_token, addend.cuda())));
    }
  }
}

TEST_P(NativeExpertsCuda, WeighedSwigluEqualsCpu) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{0, 8}, {1, 1}, {7, 13}, {64, 768}, {5, 5000}}) {
    const at::Tensor gate_up = Random({shape[0], 2 * shape[1]}) * 2, grad = Random(shape);
    const at::Tensor weights = at::randn({shape[0], 1});
    const at::Tensor cuda = gate_up.cuda(), exact = Exact(gate_up);
    const at::Tensor product = WeighedSwigluForward(cuda, weights.cuda());
    ExpectNear(product, WeighedSwigluForward(exact, weights));
    const WeighedSwigluGrads grads = WeighedSwigluBackward(grad.cuda(), cuda, weights.cuda());
    const WeighedSwigluGrads want = WeighedSwigluBackward(Exact(grad), exact, weights);
    EXPECT_TRUE(grads.product.equal(product));
    ExpectNear(grads.weights, want.weights.to(at::kDouble));
    ExpectNear(cuda, exact);
  }
}

TEST_P(NativeExpertsCuda, ProductsEqualCpu) {
  // With sizes that are multiples of a pack, and others.
  for (const auto& [inputs, outputs] :
       {std::pair(64, 48), std::pair(256, 136), std::pair(13, 7), std::pair(72, 65)}) {
    for (const Chosen& chosen : Choices()) {
      const RowPlaces places = PlaceRows(chosen.choices, chosen.experts, kExpertRowStep);
      const at::Tensor ends = places.ends, cuda_ends = ends.cuda();
      const at::Tensor x = Random({chosen.choices.numel(), inputs}),
                       grad = Random({chosen.choices.numel(), 2 * outputs});
      // Padding rows are zero, except for those after the last expert's, which are not read.
      at::Tensor rows = GatherRows(x, places.order), grad_rows = GatherRows(grad, places.order);
      const auto end = ends[chosen.experts - 1].item<int64_t>();
      const double nan = std::numeric_limits<double>::quiet_NaN();
      rows.narrow(0, end, rows.size(0) - end).fill_(nan);
      grad_rows.narrow(0, end, rows.size(0) - end).fill_(nan);
      const at::Tensor a = Random({chosen.experts, outputs, inputs}),
                       b = Random({chosen.experts, outputs, inputs});
      const auto used = [end = end](const at::Tensor& of) { return of.narrow(0, 0, end); };
      ExpectNear(used(ExpertsForward(rows.cuda(), cuda_ends, {a.cuda(), b.cuda()})),
                 used(ExpertsForward(Exact(rows), ends, {Exact(a), Exact(b)})));
      const std::vector<at::Tensor> parts =
          ExpertsBackward(grad_rows.cuda(), cuda_ends, {a.cuda(), b.cuda()});
      ASSERT_EQ(parts.size(), 2u);
      ExpectNear(used(parts[0].to(at::kDouble) + parts[1].to(at::kDouble)),
                 used(ExpertsBackward(Exact(grad_rows), ends, {Exact(a), Exact(b)})[0]));
      for (const bool accumulate : {false, true}) {
        for (const at::ScalarType buffer : {GetParam(), at::kFloat}) {
          const at::Tensor into = at::full(a.sizes(), accumulate ? 1.0 : nan, buffer),
                           exact = into.to(at::kDouble);
          const at::Tensor cuda = into.cuda();
          ExpertsGradsInto(grad_rows.cuda(), rows.cuda(), cuda_ends, outputs, accumulate,
                           {at::Tensor(), cuda});
          ExpertsGradsInto(Exact(grad_rows), Exact(rows), ends, outputs, accumulate, {at::Tensor(), exact});
          ExpectNear(cuda, exact);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NativeExpertsCuda, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// Context with router losses.
class LossContext : public SingleRankContext {
 public:
  explicit LossContext(at::Device device) : grad_loss_(at::full({}, 0.25, at::TensorOptions(device))) {}
  at::Tensor GradLoss() const override { return grad_loss_; }

 private:
  const at::Tensor grad_loss_;
};

TEST(NativeRouterCuda, RouterEqualsCpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  for (const bool sigmoid : {false, true}) {
    for (const int64_t groups : {1, 4}) {
      ExpertsConfig config;
      config.count = 24;
      config.per_token = 3;
      config.normalized = sigmoid;
      config.sigmoid = sigmoid;
      config.groups = groups;
      config.groups_per_token = groups == 1 ? 1 : 2;
      config.balance_loss = 0.1;
      config.z_loss = 0.01;
      constexpr int64_t kSamples = 3, kTokens = 3 * 50, kHidden = 40;
      const at::Tensor x = at::randn({kTokens, kHidden});
      const Router router = {at::randn({24, kHidden}), sigmoid ? at::randn({24}) : at::Tensor()};
      const Router on_cuda = {router.matrix.cuda(), sigmoid ? router.bias.cuda() : at::Tensor()};
      const at::Tensor targets = at::randint(-100, -98, {kSamples, kTokens / kSamples}, at::kLong);
      LossContext cpu_context(at::kCPU), cuda_context(at::kCUDA);
      const Routing cpu = Route(x, router, config, targets, &cpu_context);
      const Routing cuda = Route(x.cuda(), on_cuda, config, targets.cuda(), &cuda_context);
      const auto near = [](const at::Tensor& got, const at::Tensor& want) {
        EXPECT_LT((got.cpu() - want).norm().item<double>(), 1e-4 * want.norm().item<double>());
      };
      ASSERT_TRUE(cuda.experts.cpu().equal(cpu.experts));
      EXPECT_TRUE(cuda.loads.cpu().equal(cpu.loads));
      EXPECT_TRUE(cuda.counts.cpu().equal(cpu.counts));
      near(RoutingSums(cuda, config), RoutingSums(cpu, config));
      // By choice, since rows are padded on CUDA.
      const at::Tensor weights = ChoiceWeights(cuda, config);
      near(weights, ChoiceWeights(cpu, config));
      const at::Tensor grad = at::randn({kTokens * 3, 1});
      near(RouterBackward(cuda, config, grad.cuda(), cuda_context),
           RouterBackward(cpu, config, grad.clone(), cpu_context));
    }
  }
}

// The device rounds differently from the CPU: the result is 0 only if chosen / sum is exactly 1 there too.
TEST(NativeRouterCuda, NormalizedTop1HasZeroGradient) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool sigmoid : {false, true}) {
      ExpertsConfig config;
      config.count = 24;
      config.per_token = 1;
      config.normalized = true;
      config.sigmoid = sigmoid;
      config.weight_scale = sigmoid ? 2.5 : 1;
      constexpr int64_t kSamples = 3, kTokens = 3 * 4096, kHidden = 64;
      const at::Tensor x = at::randn({kTokens, kHidden}).to(type).cuda();
      const Router router = {at::randn({24, kHidden}).to(type).cuda(), at::Tensor()};
      LossContext context(at::kCUDA);
      const at::Tensor targets = at::zeros({kSamples, kTokens / kSamples}, at::kLong).cuda();
      const Routing routing = Route(x, router, config, targets, &context);
      const at::Tensor got = RouterBackward(routing, config, at::randn({kTokens, 1}).cuda(), context);
      EXPECT_EQ(got.abs().max().item<double>(), 0) << type << " sigmoid=" << sigmoid;
    }
  }
}

}  // namespace
}  // namespace fsdpd
