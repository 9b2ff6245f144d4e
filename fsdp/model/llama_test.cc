#include "fsdp/model/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fsdpd {
namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 6;

LlamaConfig SmallConfig(int64_t kv_heads) {
  LlamaConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = kv_heads;
  config.rope_theta = 100;
  return config;
}

using Params = std::vector<std::vector<at::Tensor>>;  // By unit.

// The same model as one graph, from the formulas and without LibTorch's composed operations.
class Reference {
 public:
  explicit Reference(const LlamaConfig& config) : config_(config) {}

  at::Tensor Loss(const Params& params, const at::Tensor& tokens, const at::Tensor& targets) const {
    at::Tensor x = at::embedding(params.front()[0], tokens);
    for (size_t u = 1; u + 1 < params.size(); ++u) x = Block(x, params[u]);
    const at::Tensor logits = at::matmul(Norm(x, params.back()[0]), params.back()[1].t());
    const at::Tensor log_probabilities = at::log_softmax(logits, -1).view({-1, config_.vocab_size});
    return log_probabilities.gather(1, targets.view({-1, 1})).mean().neg();
  }

 private:
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const {
    return x * (x.square().mean(-1, /*keepdim=*/true) + config_.norm_epsilon).rsqrt() * weight;
  }

  // Positions turn the pairs (x[i], x[i + half]) by angles position / theta^(2i / head).
  at::Tensor Turn(const at::Tensor& x) const {  // [batch, head, sequence, head_size]
    const int64_t half = config_.head_size() / 2;
    const at::Tensor angle = at::arange(kSequence, at::kFloat).view({-1, 1}) *
                             (at::arange(half, at::kFloat) * (-std::log(config_.rope_theta) / half)).exp();
    const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
    return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, -1);
  }

  at::Tensor Heads(const at::Tensor& x, const at::Tensor& weight, int64_t heads) const {
    return at::matmul(x, weight.t()).view({kBatch, kSequence, heads, config_.head_size()}).transpose(1, 2);
  }

  at::Tensor Block(const at::Tensor& input, const std::vector<at::Tensor>& p) const {
    const at::Tensor normed = Norm(input, p[0]);
    const int64_t group = config_.heads / config_.kv_heads;
    const at::Tensor q = Turn(Heads(normed, p[1], config_.heads));
    const at::Tensor k = Turn(Heads(normed, p[2], config_.kv_heads)).repeat_interleave(group, 1);
    const at::Tensor v = Heads(normed, p[3], config_.kv_heads).repeat_interleave(group, 1);
    const at::Tensor future = at::full({kSequence, kSequence}, -INFINITY).triu(1);
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(config_.head_size()) + future;
    const at::Tensor mixed = at::matmul(at::softmax(scores, -1), v).transpose(1, 2);
    const at::Tensor x =
        input + at::matmul(mixed.reshape({kBatch, kSequence, config_.hidden_size}), p[4].t());
    const at::Tensor ffn_in = Norm(x, p[5]);
    const at::Tensor gate = at::matmul(ffn_in, p[6].t());
    return x + at::matmul(gate * at::sigmoid(gate) * at::matmul(ffn_in, p[7].t()), p[8].t());
  }

  const LlamaConfig config_;
};

class LlamaTest : public ::testing::TestWithParam<int64_t> {
 protected:
  LlamaTest()
      : config_(SmallConfig(GetParam())),
        facts_(DescribeLlama(config_, kBatch, kSequence, DType::kFp32)),
        units_(MakeLlama(config_, facts_, kSequence, at::kCPU)),
        tokens_(at::randint(config_.vocab_size, {kBatch, kSequence}, at::kLong)),
        targets_(at::randint(config_.vocab_size, {kBatch, kSequence}, at::kLong)) {
    for (size_t u = 0; u < units_.size(); ++u) {
      params_.emplace_back();
      grads_.emplace_back();
      for (size_t p = 0; p < facts_.units[u].params.size(); ++p) {
        // Larger than the model's own start, so that attention and gates leave their linear range.
        at::Tensor value = units_[u]->InitialValue(static_cast<int>(p), 1);
        params_.back().push_back(value.dim() > 1 ? value * 20 : value + at::arange(value.numel()) * 0.1);
        grads_.back().push_back(at::zeros_like(value));
      }
      units_[u]->Bind(params_.back());
    }
  }

  // Through the chain of units, as the executor does it.
  double LossAndGradients(bool keep) {
    UnitInput input{tokens_, targets_, at::Tensor()};
    at::Tensor loss;
    for (const auto& unit : units_) {
      UnitOutput output = unit->Forward(0, input, keep);
      input.hidden = output.hidden;
      loss = output.loss;
    }
    at::Tensor grad;
    for (int u = static_cast<int>(units_.size()) - 1; u >= 0; --u) {
      grad = units_[u]->Backward(0, grad, 1.0, /*accumulate=*/false, grads_[u]);
    }
    return loss.item<double>();
  }

  const LlamaConfig config_;
  const ModelFacts facts_;
  const std::vector<std::unique_ptr<Unit>> units_;
  const at::Tensor tokens_;
  const at::Tensor targets_;
  Params params_;
  Params grads_;
};

TEST_P(LlamaTest, ParametersHaveTheShapesThatThePlanKnows) {
  ASSERT_EQ(units_.size(), facts_.units.size());
  for (size_t u = 0; u < units_.size(); ++u) {
    for (size_t p = 0; p < facts_.units[u].params.size(); ++p) {
      EXPECT_EQ(units_[u]->InitialValue(static_cast<int>(p), 1).sizes().vec(),
                facts_.units[u].params[p].shape);
    }
  }
}

TEST_P(LlamaTest, LossAndEveryGradientEqualTheFormulasAsOneGraph) {
  for (bool keep : {true, false}) {
    const double loss = LossAndGradients(keep);
    Params leaves;
    for (const auto& unit : params_) {
      leaves.emplace_back();
      for (const at::Tensor& param : unit) leaves.back().push_back(param.clone().set_requires_grad(true));
    }
    const at::Tensor expected = Reference(config_).Loss(leaves, tokens_, targets_);
    expected.backward();
    EXPECT_NEAR(loss, expected.item<double>(), 1e-5);
    for (size_t u = 0; u < leaves.size(); ++u) {
      for (size_t p = 0; p < leaves[u].size(); ++p) {
        const at::Tensor& grad = leaves[u][p].grad();
        EXPECT_GT(grad.abs().max().item<double>(), 0) << facts_.units[u].params[p].name;
        EXPECT_LT((grads_[u][p] - grad).norm().item<double>(), 1e-5 * grad.norm().item<double>())
            << facts_.units[u].name << " " << facts_.units[u].params[p].name << " keep=" << keep;
      }
    }
  }
}

TEST_P(LlamaTest, RecomputeGivesTheSameBits) {
  LossAndGradients(/*keep=*/true);
  Params kept;
  for (const auto& unit : grads_) {
    kept.emplace_back();
    for (const at::Tensor& grad : unit) kept.back().push_back(grad.clone());
  }
  LossAndGradients(/*keep=*/false);
  for (size_t u = 0; u < kept.size(); ++u) {
    for (size_t p = 0; p < kept[u].size(); ++p) EXPECT_TRUE(grads_[u][p].equal(kept[u][p]));
  }
}

INSTANTIATE_TEST_SUITE_P(KvHeads, LlamaTest, ::testing::Values(4, 2, 1));

TEST(Llama, Bf16UnitsGiveFp32GradientsNearThoseOfFp32) {
  const LlamaConfig config = SmallConfig(2);
  const ModelFacts facts = DescribeLlama(config, kBatch, kSequence, DType::kBf16);
  const at::Tensor tokens = at::randint(config.vocab_size, {kBatch, kSequence}, at::kLong);
  std::vector<at::Tensor> head_grad;
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto units = MakeLlama(config, facts, kSequence, at::kCPU);
    Params grads;
    UnitInput input{tokens, tokens, at::Tensor()};
    for (size_t u = 0; u < units.size(); ++u) {
      std::vector<at::Tensor> params;
      grads.emplace_back();
      for (size_t p = 0; p < facts.units[u].params.size(); ++p) {
        const at::Tensor value = units[u]->InitialValue(static_cast<int>(p), 1);
        params.push_back(value.to(type));
        grads.back().push_back(at::zeros_like(value));
      }
      units[u]->Bind(params);
      const UnitOutput output = units[u]->Forward(0, input, /*keep=*/true);
      input.hidden = output.hidden;
      if (output.loss.defined()) {
        EXPECT_EQ(output.loss.scalar_type(), at::kFloat);
      }
    }
    at::Tensor grad;
    for (int u = static_cast<int>(units.size()) - 1; u >= 0; --u) {
      grad = units[u]->Backward(0, grad, 1.0, /*accumulate=*/false, grads[u]);
    }
    head_grad.push_back(grads.back()[1]);
  }
  const double error =
      (head_grad[0] - head_grad[1]).norm().item<double>() / head_grad[0].norm().item<double>();
  EXPECT_LT(error, 0.05);
  EXPECT_GT(error, 0);
}

}  // namespace
}  // namespace fsdpd
