#include "fsdp/model/autograd/autograd_unit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/model/testing/plain_params.h"

namespace fsdpd {
namespace {

constexpr int64_t kWidth = 4;

// y = tanh(x W^T) * g, with a second use of W; `unused` does not contribute.
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

// A bucket as in the engine: the all-gather writes through the flat tensor, the unit has views of it.
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
    BindSingleRank(&unit_, params_.Views());
    grads_.flat.fill_(std::numeric_limits<float>::quiet_NaN());  // Backward must set every element.
  }

  void Poison() { params_.flat.fill_(std::numeric_limits<float>::quiet_NaN()); }
  void Gather() { params_.flat.copy_(values_); }
  UnitInput Input() const { return {at::Tensor(), at::Tensor(), x_}; }

  // The same computed by plain autograd on separate tensors: gradients of w, g and x.
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

TEST_F(AutogradUnitTest, GradientsEqualPlainAutogradAfterBucketReuse) {
  for (ActivationSaving saving :
       {ActivationSaving::kAll, ActivationSaving::kSelective, ActivationSaving::kInput}) {
    unit_.Forward(0, Input(), saving);
    Poison();
    Gather();
    const at::Tensor dx = unit_.Backward(0, dy_, {grads_.Views(), /*accumulate=*/false}, WeightGrads::kNow);
    const std::vector<at::Tensor> expected = Expected();
    EXPECT_TRUE(grads_.Views()[0].equal(expected[0])) << "keep=" << static_cast<int>(saving);
    EXPECT_TRUE(grads_.Views()[1].equal(expected[1])) << "keep=" << static_cast<int>(saving);
    EXPECT_TRUE(dx.equal(expected[2])) << "keep=" << static_cast<int>(saving);
  }
}

TEST_F(AutogradUnitTest, BackwardReadsParametersInPlace) {
  unit_.Forward(0, Input(), ActivationSaving::kAll);
  Poison();
  const at::Tensor dx = unit_.Backward(0, dy_, {grads_.Views(), /*accumulate=*/false}, WeightGrads::kNow);
  EXPECT_TRUE(dx.isnan().any().item<bool>());  // No hidden copy exists.
}

TEST_F(AutogradUnitTest, AccumulatesOverSlotsInFlight) {
  unit_.Forward(0, Input(), ActivationSaving::kAll);
  unit_.Forward(1, Input(), ActivationSaving::kInput);
  unit_.Backward(1, dy_, {grads_.Views(), /*accumulate=*/false}, WeightGrads::kNow);
  unit_.Backward(0, dy_, {grads_.Views(), /*accumulate=*/true}, WeightGrads::kNow);
  EXPECT_TRUE(grads_.Views()[0].equal(Expected()[0] * 2));
}

TEST_F(AutogradUnitTest, UnusedParameterHasZeroGradient) {
  unit_.Forward(0, Input(), ActivationSaving::kAll);
  unit_.Backward(0, dy_, {grads_.Views(), /*accumulate=*/false}, WeightGrads::kNow);
  EXPECT_TRUE(grads_.Views()[2].equal(at::zeros({3})));
  grads_.Views()[2].fill_(5);
  unit_.Forward(0, Input(), ActivationSaving::kAll);
  unit_.Backward(0, dy_, {grads_.Views(), /*accumulate=*/true}, WeightGrads::kNow);
  EXPECT_TRUE(grads_.Views()[2].equal(at::full({3}, 5.0)));
}

TEST_F(AutogradUnitTest, OutputsAreDetached) {
  EXPECT_FALSE(unit_.Forward(0, Input(), ActivationSaving::kAll).hidden.requires_grad());
  EXPECT_FALSE(unit_.Forward(1, Input(), ActivationSaving::kInput).hidden.requires_grad());
}

TEST_F(AutogradUnitTest, KeepNothingSavesNothing) {
  const at::Tensor kept = unit_.Forward(0, Input(), ActivationSaving::kAll).hidden;
  unit_.Backward(0, dy_, {grads_.Views(), /*accumulate=*/false}, WeightGrads::kNow);
  EXPECT_TRUE(unit_.Forward(0, Input(), ActivationSaving::kNothing).hidden.equal(kept));
  EXPECT_TRUE(
      unit_.Forward(0, Input(), ActivationSaving::kNothing).hidden.equal(kept));  // The slot is still free.
}

TEST_F(AutogradUnitTest, CastsGradientsToBucketType) {
  for (const at::ScalarType type : {at::kBFloat16, at::kDouble}) {
    Bucket grads;
    grads.flat = grads.flat.to(type);
    for (const bool accumulate : {false, true}) {
      unit_.Forward(0, Input(), ActivationSaving::kAll);
      unit_.Backward(0, dy_, {grads.Views(), accumulate}, WeightGrads::kNow);
      const at::Tensor once = Expected()[0].to(type);
      EXPECT_TRUE(grads.Views()[0].equal(accumulate ? once * 2 : once));
    }
  }
}

TEST_F(AutogradUnitTest, FrozenParameterHasNoGradient) {
  UnitFacts facts = TestFacts();
  facts.params[0].trainable = false;
  AutogradUnit unit(facts, {{}, {}, {}}, TestForward);
  BindSingleRank(&unit, params_.Views());
  unit.Forward(0, Input(), ActivationSaving::kAll);
  std::vector<at::Tensor> grads = grads_.Views();
  grads[0] = at::Tensor();
  const at::Tensor dx = unit.Backward(0, dy_, {grads, /*accumulate=*/false}, WeightGrads::kNow);
  EXPECT_TRUE(dx.equal(Expected()[2]));
  EXPECT_TRUE(grads[1].equal(Expected()[1]));
  EXPECT_TRUE(grads_.Views()[0].isnan().all().item<bool>());
}

TEST_F(AutogradUnitTest, FullyFrozenFirstUnitSkipsBackward) {
  UnitFacts facts = TestFacts();
  for (ParamFacts& param : facts.params) param.trainable = false;
  AutogradUnit unit(facts, {{}, {}, {}}, [](const UnitInput& input, const std::vector<at::Tensor>& params) {
    return UnitOutput{params[0].index_select(0, input.tokens), at::Tensor()};
  });
  BindSingleRank(&unit, params_.Views());
  const UnitInput input{at::zeros({2}, at::kLong), at::Tensor(), at::Tensor()};
  unit.Forward(0, input, ActivationSaving::kAll);
  EXPECT_FALSE(
      unit.Backward(0, dy_, {std::vector<at::Tensor>(3), /*accumulate=*/false}, WeightGrads::kNow).defined());
}

TEST_F(AutogradUnitTest, BindsBorrowedParametersAfterOwn) {
  UnitFacts facts = TestFacts();
  facts.params = {facts.params[1]};  // g; w and `unused` belong to the lender.
  facts.borrows = 0;
  AutogradUnit unit(facts, {{}}, [](const UnitInput& input, const std::vector<at::Tensor>& params) {
    return TestForward(input, {params[1], params[0]});
  });
  const std::vector<at::Tensor> views = params_.Views();
  BindSingleRank(&unit, {views[1], views[0], views[2]});
  unit.Forward(0, Input(), ActivationSaving::kInput);
  const std::vector<at::Tensor> grads = grads_.Views();
  unit.Backward(0, dy_, {{grads[1], grads[0], grads[2]}, /*accumulate=*/false}, WeightGrads::kNow);
  EXPECT_TRUE(grads[0].equal(Expected()[0]));
  EXPECT_TRUE(grads[1].equal(Expected()[1]));
  EXPECT_TRUE(grads[2].equal(at::zeros({3})));
}

TEST_F(AutogradUnitTest, ScalesLossByTensor) {
  AutogradUnit unit(TestFacts(), {{}, {}, {}},
                    [this](const UnitInput& input, const std::vector<at::Tensor>& params) {
                      return UnitOutput{at::Tensor(), (TestForward(input, params).hidden * dy_).sum()};
                    });
  BindSingleRank(&unit, params_.Views());
  const std::vector<at::Tensor> grads = grads_.Views();
  const Unit::LossAndGrad result = unit.ForwardBackward(0, Input(), at::full({}, 4.0), {grads});
  EXPECT_EQ(result.loss.dim(), 0);
  EXPECT_TRUE(result.loss.equal(unit.Forward(0, Input(), ActivationSaving::kNothing).loss));
  EXPECT_TRUE(grads_.Views()[0].equal(Expected()[0] * 4));
}

TEST_F(AutogradUnitTest, InitialValuesDependOnNames) {
  EXPECT_TRUE(unit_.InitialValue(0, 1, 3, 9).equal(DrawInitialValue(NumbersOf("test", "w", {}, 1), 3, 9)));
}

}  // namespace
}  // namespace fsdpd
