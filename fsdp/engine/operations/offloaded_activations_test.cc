#include "fsdp/engine/operations/offloaded_activations.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

constexpr int kUnit = 1;  // The first layer.
constexpr int kSlot = 0;

// Saves the tensors that a test provides.
class Keeper : public Unit {
 public:
  std::vector<at::Tensor> saved;

  void Bind(const std::vector<BoundParam>& /*params*/, UnitContext* /*context*/) override {}
  UnitOutput Forward(int /*slot*/, const UnitInput& /*input*/, ActivationSaving /*keep*/) override {
    return {};
  }
  at::Tensor Backward(int /*slot*/, const at::Tensor& /*grad_out*/, const ParamGrads& /*grads*/,
                      WeightGrads /*when*/) override {
    return {};
  }
  void VisitSavedActivations(int /*slot*/, const std::function<void(at::Tensor*)>& visit) override {
    for (at::Tensor& each : saved) visit(&each);
  }
  at::Tensor InitialValue(int /*index*/, uint64_t /*seed*/, int64_t /*begin*/,
                          int64_t /*elements*/) const override {
    return {};
  }
};

class OffloadedActivationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    v1::JobSpec job = Over(TestJob(), {"", v1::STRATEGY_OPTIM_GRADS_PARAMS}, 1, 1);
    job.mutable_fsdp()->mutable_offload()->set_activation_layers(1);
    const auto plan = AcceptedPlan(job);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan_ = *plan;
    auto made = OffloadedActivations::Make(plan_, at::kCPU);
    ASSERT_TRUE(made.ok()) << made.status();
    offloaded_ = *std::move(made);
  }

  void ThereAndBack() {
    offloaded_->Take(kUnit, kSlot, &keeper_);
    const std::vector<at::Tensor> away = keeper_.saved;
    offloaded_->Offload(kUnit);
    offloaded_->Drop(kUnit);
    for (const at::Tensor& each : away) EXPECT_TRUE(each.defined());
    offloaded_->Fetch(kUnit);
    offloaded_->PutBack(kUnit, kSlot, &keeper_);
  }

  Plan plan_;
  std::unique_ptr<OffloadedActivations> offloaded_;
  Keeper keeper_;
};

TEST_F(OffloadedActivationsTest, OffloadsPlannedLayers) {
  EXPECT_TRUE(offloaded_->Has(kUnit));
  EXPECT_FALSE(offloaded_->Has(0));
  EXPECT_FALSE(offloaded_->Has(kUnit + 1));
}

TEST_F(OffloadedActivationsTest, RestoresValuesShapesAndStrides) {
  const at::Tensor rows = at::arange(12).view({3, 4}), turned = at::arange(6).view({2, 3}).t();
  const at::Tensor empty = at::empty({0}), byte = at::arange(3).to(at::kByte);
  keeper_.saved = {empty, rows.clone(), turned.clone(), byte.clone(), at::zeros({}, at::kFloat)};
  const std::vector<at::Tensor> before = keeper_.saved;
  ThereAndBack();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(keeper_.saved[i].equal(before[i])) << i;
    EXPECT_EQ(keeper_.saved[i].strides(), before[i].strides()) << i;
    if (i > 0) EXPECT_NE(keeper_.saved[i].data_ptr(), before[i].data_ptr()) << i;
  }
}

// Like two parts of one fused product.
TEST_F(OffloadedActivationsTest, PreservesSharedStorage) {
  const at::Tensor packed = at::arange(20).view({4, 5});
  keeper_.saved = {packed.narrow(1, 1, 2), packed.narrow(1, 3, 2)};
  const at::Tensor first = keeper_.saved[0].clone(), second = keeper_.saved[1].clone();
  ThereAndBack();
  EXPECT_TRUE(keeper_.saved[0].equal(first));
  EXPECT_TRUE(keeper_.saved[1].equal(second));
  EXPECT_EQ(keeper_.saved[0].storage().unsafeGetStorageImpl(),
            keeper_.saved[1].storage().unsafeGetStorageImpl());
  EXPECT_NE(keeper_.saved[0].storage().unsafeGetStorageImpl(), packed.storage().unsafeGetStorageImpl());
}

TEST_F(OffloadedActivationsTest, ExcessTensorsStayWithTheUnit) {
  const at::Tensor large = at::zeros({int64_t{1} << 24}), small = at::arange(5);
  keeper_.saved = {large, small.clone()};
  offloaded_->Take(kUnit, kSlot, &keeper_);
  EXPECT_TRUE(keeper_.saved[0].is_same(large));
  EXPECT_EQ(keeper_.saved[1].numel(), 0);
  offloaded_->Offload(kUnit);
  offloaded_->Drop(kUnit);
  EXPECT_EQ(large.use_count(), 2u) << "nobody else holds it";
  offloaded_->Fetch(kUnit);
  offloaded_->PutBack(kUnit, kSlot, &keeper_);
  EXPECT_TRUE(keeper_.saved[0].is_same(large));
  EXPECT_TRUE(keeper_.saved[1].equal(small));
}

TEST_F(OffloadedActivationsTest, IsReusableAfterForget) {
  for (int64_t m = 0; m < 3; ++m) {
    keeper_.saved = {at::arange(m, m + 8)};
    ThereAndBack();
    EXPECT_TRUE(keeper_.saved[0].equal(at::arange(m, m + 8)));
  }
  keeper_.saved = {at::arange(8)};
  offloaded_->Take(kUnit, kSlot, &keeper_);
  offloaded_->Forget();
  keeper_.saved = {at::arange(8)};
  ThereAndBack();
  EXPECT_TRUE(keeper_.saved[0].equal(at::arange(8)));
}

}  // namespace
}  // namespace fsdpd
