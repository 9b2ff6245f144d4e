#include "fsdp/model/autograd/gpt2.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/model/testing/unit_chain.h"
#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 5;

Gpt2Config SmallConfig(bool tied) {
  Gpt2Config config;
  config.vocab_size = 13;
  config.hidden_size = 8;
  config.intermediate_size = 20;
  config.layers = 2;
  config.heads = 2;
  config.positions = 9;
  config.tied_embeddings = tied;
  return config;
}

// The same model as one graph in double precision, from the formulas. Parameters by index, in the order of
// model_facts.h.
class Reference {
 public:
  explicit Reference(const Gpt2Config& config) : config_(config) {}

  at::Tensor Loss(const TensorsByUnit& params, const at::Tensor& tokens, const at::Tensor& targets) const {
    at::Tensor x = at::embedding(params[0][0], tokens) + params[0][1].narrow(0, 0, kSequence);
    for (size_t u = 1; u + 1 < params.size(); ++u) x = Block(x, params[u]);
    const std::vector<at::Tensor>& head = params.back();
    const at::Tensor output = config_.tied_embeddings ? params[0][0] : head[2];
    const at::Tensor logs = at::log_softmax(at::matmul(Norm(x, head[0], head[1]), output.t()), -1);
    return logs.view({-1, config_.vocab_size}).gather(1, targets.view({-1, 1})).sum().neg();
  }

 private:
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
    const at::Tensor centred = x - x.mean(-1, /*keepdim=*/true);
    const at::Tensor variance = centred.square().mean(-1, /*keepdim=*/true);
    return centred * (variance + config_.norm_epsilon).rsqrt() * weight + bias;
  }

  at::Tensor Heads(const at::Tensor& qkv, int64_t part) const {
    const at::Tensor x = qkv.narrow(-1, part * config_.hidden_size, config_.hidden_size);
    return x.reshape({kBatch, kSequence, config_.heads, config_.head_size()}).transpose(1, 2);
  }

  at::Tensor Block(const at::Tensor& input, const std::vector<at::Tensor>& p) const {
    const at::Tensor qkv = at::matmul(Norm(input, p[0], p[1]), p[2].t()) + p[3];
    const at::Tensor future = at::full({kSequence, kSequence}, -INFINITY, at::kDouble).triu(1);
    const at::Tensor scores = at::matmul(Heads(qkv, 0), Heads(qkv, 1).transpose(2, 3)) /
                                  std::sqrt(static_cast<double>(config_.head_size())) +
                              future;
    const at::Tensor mixed = at::matmul(at::softmax(scores, -1), Heads(qkv, 2)).transpose(1, 2);
    const at::Tensor x =
        input + at::matmul(mixed.reshape({kBatch, kSequence, config_.hidden_size}), p[4].t()) + p[5];
    const at::Tensor wide = at::matmul(Norm(x, p[6], p[7]), p[8].t()) + p[9];
    const double root = std::sqrt(2 / 3.141592653589793);
    const at::Tensor gelu = 0.5 * wide * (1 + (root * (wide + 0.044715 * wide.pow(3))).tanh());
    return x + at::matmul(gelu, p[10].t()) + p[11];
  }

  const Gpt2Config config_;
};

UnitChain MakeChain(const Gpt2Config& config) {
  const ModelFacts facts = DescribeModel(config, kBatch, kSequence, DType::kFp32);
  auto units = MakeGpt2(config, facts);
  TensorsByUnit params = TestParams(facts, units, /*scale=*/20);
  return UnitChain(facts, std::move(units), std::move(params));
}

class Gpt2Test : public ::testing::TestWithParam<bool> {  // Whether embeddings are tied.
 protected:
  const Gpt2Config config_ = SmallConfig(GetParam());
  UnitChain chain_ = MakeChain(config_);
  const at::Tensor tokens_ = at::randint(config_.vocab_size, {kBatch, kSequence}, at::kLong);
  const at::Tensor targets_ = at::randint(config_.vocab_size, {kBatch, kSequence}, at::kLong);
};

TEST_P(Gpt2Test, LossAndGradientsEqualReference) {
  for (ActivationSaving saving :
       {ActivationSaving::kAll, ActivationSaving::kSelective, ActivationSaving::kInput}) {
    const at::Tensor loss = chain_.LossAndGradients({tokens_, targets_}, saving);
    const TensorsByUnit leaves = DoubleLeaves(chain_.params());
    const at::Tensor expected = Reference(config_).Loss(leaves, tokens_, targets_);
    expected.backward();
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6 * expected.item<double>());
    chain_.ExpectGradients(GradsOf(leaves), 1e-5);
  }
}

TEST_P(Gpt2Test, PositionsBeyondSequenceHaveZeroGradient) {
  chain_.LossAndGradients({tokens_, targets_}, ActivationSaving::kAll);
  const at::Tensor& positions = chain_.grads()[0][1];
  EXPECT_GT(positions.narrow(0, 0, kSequence).abs().min().item<float>(), 0);
  EXPECT_EQ(positions.narrow(0, kSequence, 9 - kSequence).abs().max().item<float>(), 0);
}

INSTANTIATE_TEST_SUITE_P(Tied, Gpt2Test, ::testing::Bool());

TEST(Gpt2, ResidualProjectionsInitializeByDepth) {
  Gpt2Config config = SmallConfig(true);
  config.hidden_size = 64;
  config.layers = 8;  // A quarter: 1/sqrt(2 x 8).
  const ModelFacts facts = DescribeModel(config, kBatch, kSequence, DType::kFp32);
  const auto units = MakeGpt2(config, facts);
  const auto deviation = [&](int param) {
    return units[1]->InitialValue(param, 1, 0, facts.units[1].params[param].elements()).std().item<double>();
  };
  EXPECT_NEAR(deviation(2), 0.02, 0.001);                                      // attention.wqkv
  EXPECT_NEAR(deviation(4), 0.005, 0.00025);                                   // attention.wo
  EXPECT_EQ(units[1]->InitialValue(1, 1, 0, 4).abs().max().item<float>(), 0);  // attention_norm.bias
  EXPECT_EQ(units[1]->InitialValue(0, 1, 0, 4).min().item<float>(), 1);        // attention_norm.weight
}

}  // namespace
}  // namespace fsdpd
