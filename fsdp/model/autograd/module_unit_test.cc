#include "fsdp/model/autograd/module_unit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <limits>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/model/testing/plain_params.h"

namespace fsdpd {
namespace {

constexpr int64_t kWidth = 6;

// Nested, with a buffer, and with members that register parameters by name as usual.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 2 * kWidth))),
        down(register_module("down", torch::nn::Linear(2 * kWidth, kWidth))),
        offset(register_buffer("offset", at::arange(kWidth, at::kFloat))) {}

  at::Tensor forward(const at::Tensor& x) { return x + down(at::tanh(up(norm(x)))) + offset; }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
  at::Tensor offset;
};

std::vector<at::Tensor> ValuesOf(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& param : module.parameters()) values.push_back(param.detach().clone());
  return values;
}

class ModuleUnitTest : public ::testing::Test {
 protected:
  ModuleUnitTest() {
    for (const at::Tensor& value : values_) {
      params_.push_back(value.clone());
      grads_.push_back(at::full_like(value, std::numeric_limits<float>::quiet_NaN()));
    }
  }

  std::unique_ptr<Unit> Make() const {
    return MakeModuleUnit(facts_, block_, [block = block_](const UnitInput& input) {
      return UnitOutput{block->forward(input.hidden), at::Tensor()};
    });
  }

  std::shared_ptr<BlockImpl> block_ = std::make_shared<BlockImpl>();
  UnitFacts facts_ = *DescribeModule("layer.0", UnitKind::kBlock, *block_);
  const std::vector<at::Tensor> values_ = ValuesOf(*block_);
  std::vector<at::Tensor> params_, grads_;
  const at::Tensor x_ = at::randn({2, 3, kWidth}), dy_ = at::randn({2, 3, kWidth});
};

TEST_F(ModuleUnitTest, FactsMatchNamedParameters) {
  std::vector<std::string> names;
  for (const ParamFacts& param : facts_.params) names.push_back(param.name);
  EXPECT_EQ(names, (std::vector<std::string>{"norm.weight", "norm.bias", "up.weight", "up.bias",
                                             "down.weight", "down.bias"}));
  EXPECT_EQ(facts_.params[2].shape, (std::vector<int64_t>{2 * kWidth, kWidth}));
  EXPECT_TRUE(facts_.params[2].decay);
  EXPECT_FALSE(facts_.params[3].decay);
}

TEST_F(ModuleUnitTest, ForwardAndGradientsEqualModule) {
  at::Tensor x = x_.clone().set_requires_grad(true);
  const at::Tensor y = block_->forward(x);
  y.backward(dy_);
  std::vector<at::Tensor> expected;
  for (const at::Tensor& param : block_->parameters()) expected.push_back(param.grad().clone());

  const std::unique_ptr<Unit> unit = Make();
  BindSingleRank(unit.get(), params_);
  for (const ActivationSaving saving : {ActivationSaving::kAll, ActivationSaving::kInput}) {
    const at::Tensor out = unit->Forward(0, {at::Tensor(), at::Tensor(), x_}, saving).hidden;
    EXPECT_TRUE(out.equal(y));
    EXPECT_FALSE(out.requires_grad());
    const at::Tensor dx = unit->Backward(0, dy_, {grads_, /*accumulate=*/false}, WeightGrads::kNow);
    EXPECT_TRUE(dx.equal(x.grad()));
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(grads_[i].equal(expected[i])) << facts_.params[i].name;
  }
}

TEST_F(ModuleUnitTest, ReadsGatheredParameters) {
  const std::unique_ptr<Unit> unit = Make();
  BindSingleRank(unit.get(), params_);
  const UnitInput input{at::Tensor(), at::Tensor(), x_};
  const at::Tensor before = unit->Forward(0, input, ActivationSaving::kAll).hidden;
  params_[5].add_(1);  // down.bias
  EXPECT_TRUE(unit->Forward(1, input, ActivationSaving::kNothing).hidden.allclose(before + 1));
  params_[5].sub_(1);
  unit->Backward(0, dy_, {grads_, /*accumulate=*/false},
                 WeightGrads::kNow);  // Autograd detected no in-place change.
}

TEST_F(ModuleUnitTest, BindsParametersOfAnotherType) {
  const std::unique_ptr<Unit> unit = Make();
  for (at::Tensor& param : params_) param = param.to(at::kBFloat16);
  BindSingleRank(unit.get(), params_);
  const at::Tensor x = x_.to(at::kBFloat16);
  const at::Tensor y = unit->Forward(0, {at::Tensor(), at::Tensor(), x}, ActivationSaving::kAll).hidden;
  unit->Backward(0, dy_.to(y.scalar_type()), {grads_, /*accumulate=*/false}, WeightGrads::kNow);
  EXPECT_EQ(grads_[2].scalar_type(), at::kFloat);
  EXPECT_FALSE(grads_[2].isnan().any().item<bool>());
}

TEST_F(ModuleUnitTest, InitialValuesComeFromNames) {
  const std::unique_ptr<Unit> unit = Make();
  EXPECT_EQ(block_->up->weight.numel(), 0);
  EXPECT_TRUE(
      unit->InitialValue(2, 7, 0, 5).equal(DrawInitialValue(NumbersOf("layer.0", "up.weight", {}, 7), 0, 5)));
  EXPECT_TRUE(unit->InitialValue(0, 7, 0, 3).equal(at::full({3}, 1.0)));
  EXPECT_TRUE(unit->InitialValue(1, 7, 0, 3).equal(at::full({3}, 0.0)));
}

TEST_F(ModuleUnitTest, FreezesParametersWithoutGradient) {
  block_->up->weight.set_requires_grad(false);
  facts_ = *DescribeModule("layer.0", UnitKind::kBlock, *block_);
  EXPECT_FALSE(facts_.params[2].trainable);
  const std::unique_ptr<Unit> unit = Make();
  BindSingleRank(unit.get(), params_);
  unit->Forward(0, {at::Tensor(), at::Tensor(), x_}, ActivationSaving::kAll);
  std::vector<at::Tensor> grads = grads_;
  grads[2] = at::Tensor();
  unit->Backward(0, dy_, {grads, /*accumulate=*/false}, WeightGrads::kNow);
  EXPECT_TRUE(grads_[2].isnan().all().item<bool>());
  EXPECT_FALSE(grads_[3].isnan().any().item<bool>());
}

TEST(DescribeModule, RejectsUnsupportedModules) {
  const auto refusal = [](const torch::nn::Module& module) {
    return std::string(DescribeModule("head", UnitKind::kHead, module).status().message());
  };
  torch::nn::Module module;
  EXPECT_EQ(refusal(module), "unit head: the module has no parameters");
  const at::Tensor shared = module.register_parameter("first", at::full({2}, 1.0));
  module.register_parameter("second", shared);
  EXPECT_EQ(refusal(module),
            "unit head: parameter second is the same tensor as first; use one name for both");
  torch::nn::Module whole;
  whole.register_parameter("table", at::arange(3), /*requires_grad=*/false);
  EXPECT_EQ(refusal(whole), "unit head: parameter table is not a plain floating-point tensor");
}

}  // namespace
}  // namespace fsdpd
