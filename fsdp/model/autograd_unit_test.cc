#include "fsdp/model/autograd_unit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

namespace fsdpd {
namespace {

constexpr int64_t kWidth = 4;

// y = tanh(x W^T) * g, with a second use of W; `unused` has no part in it.
UnitFacts TestFacts() {
  UnitFacts facts;
  facts.name = "test";
  facts.params = {{"w", {kWidth, kWidth}, true}, {"g", {kWidth}, false}, {"unused", {3}, true}};
  return facts;
}

UnitOutput TestForward(const UnitInput& input, const std::vector<at::Tensor>& params) {
  const at::Tensor y = at::tanh(at::linear(input.hidden, params[0]));
  return {at::linear(y, params[0]) * params[1], at::Tensor()};
}

AutogradUnit TestUnit() { return AutogradUnit(TestFacts(), {{}, {}, {}}, TestForward); }

// A bucket as the engine has it: the gather writes through the flat tensor, the unit gets views of the same.
struct Bucket {
  at::Tensor flat = at::zeros({kWidth * kWidth + kWidth + 3});
  std::vector<at::Tensor> Views() const {
    return {flat.narrow(0, 0, kWidth * kWidth).view({kWidth, kWidth}),
            flat.narrow(0, kWidth * kWidth, kWidth), flat.narrow(0, kWidth * kWidth + kWidth, 3)};
  }
};

class AutogradUnitTest : public ::testing::Test {
 protected:
  AutogradUnitTest() : values_(at::randn({kWidth * kWidth + kWidth + 3})) {
    params_.flat.copy_(values_);
    unit_.Bind(params_.Views());
    grads_.flat.fill_(std::numeric_limits<float>::quiet_NaN());  // Backward must set every element.
  }

  void Poison() { params_.flat.fill_(std::numeric_limits<float>::quiet_NaN()); }
  void Gather() { params_.flat.copy_(values_); }
  UnitInput Input() const { return {at::Tensor(), at::Tensor(), x_}; }

  // The same by plain autograd on tensors of its own: gradients of w, g and x.
  std::vector<at::Tensor> Expected() const {
    at::Tensor w =
        values_.narrow(0, 0, kWidth * kWidth).view({kWidth, kWidth}).clone().set_requires_grad(true);
    at::Tensor g = values_.narrow(0, kWidth * kWidth, kWidth).clone().set_requires_grad(true);
    at::Tensor x = x_.clone().set_requires_grad(true);
    TestForward({at::Tensor(), at::Tensor(), x}, {w, g}).hidden.backward(dy_);
    return {w.grad(), g.grad(), x.grad()};
  }

  const at::Tensor values_;
  const at::Tensor x_ = at::randn({2, kWidth});
  const at::Tensor dy_ = at::randn({2, kWidth});
  Bucket params_;
  Bucket grads_;
  AutogradUnit unit_ = TestUnit();
};

TEST_F(AutogradUnitTest, GradientsEqualPlainAutogradAlthoughTheBucketWasOverwrittenBetween) {
  for (bool keep : {true, false}) {
    unit_.Forward(0, Input(), keep);
    Poison();
    Gather();
    const at::Tensor dx = unit_.Backward(0, dy_, 1.0, /*accumulate=*/false, grads_.Views());
    const std::vector<at::Tensor> expected = Expected();
    EXPECT_TRUE(grads_.Views()[0].equal(expected[0])) << "keep=" << keep;
    EXPECT_TRUE(grads_.Views()[1].equal(expected[1])) << "keep=" << keep;
    EXPECT_TRUE(dx.equal(expected[2])) << "keep=" << keep;
  }
}

TEST_F(AutogradUnitTest, BackwardReadsParametersFromTheirAddress) {
  unit_.Forward(0, Input(), /*keep=*/true);
  Poison();
  const at::Tensor dx = unit_.Backward(0, dy_, 1.0, /*accumulate=*/false, grads_.Views());
  EXPECT_TRUE(dx.isnan().any().item<bool>());  // No hidden copy: what is not gathered again is seen.
}

TEST_F(AutogradUnitTest, AccumulatesOverSlotsInFlightTogether) {
  unit_.Forward(0, Input(), /*keep=*/true);
  unit_.Forward(1, Input(), /*keep=*/false);
  unit_.Backward(1, dy_, 1.0, /*accumulate=*/false, grads_.Views());
  unit_.Backward(0, dy_, 1.0, /*accumulate=*/true, grads_.Views());
  EXPECT_TRUE(grads_.Views()[0].equal(Expected()[0] * 2));
}

TEST_F(AutogradUnitTest, AParameterWithoutUseHasGradientZero) {
  unit_.Forward(0, Input(), /*keep=*/true);
  unit_.Backward(0, dy_, 1.0, /*accumulate=*/false, grads_.Views());
  EXPECT_TRUE(grads_.Views()[2].equal(at::zeros({3})));
  grads_.Views()[2].fill_(5);
  unit_.Forward(0, Input(), /*keep=*/true);
  unit_.Backward(0, dy_, 1.0, /*accumulate=*/true, grads_.Views());
  EXPECT_TRUE(grads_.Views()[2].equal(at::full({3}, 5.0)));
}

TEST_F(AutogradUnitTest, OutputsCarryNoGraph) {
  EXPECT_FALSE(unit_.Forward(0, Input(), /*keep=*/true).hidden.requires_grad());
  EXPECT_FALSE(unit_.Forward(1, Input(), /*keep=*/false).hidden.requires_grad());
}

TEST_F(AutogradUnitTest, InitialValuesDependOnSeedAndNameAlone) {
  EXPECT_TRUE(unit_.InitialValue(0, 1).equal(TestUnit().InitialValue(0, 1)));
  EXPECT_FALSE(unit_.InitialValue(0, 1).equal(unit_.InitialValue(0, 2)));
  UnitFacts renamed = TestFacts();
  renamed.name = "other";
  EXPECT_FALSE(
      unit_.InitialValue(0, 1).equal(AutogradUnit(renamed, {{}, {}, {}}, TestForward).InitialValue(0, 1)));
}

}  // namespace
}  // namespace fsdpd
