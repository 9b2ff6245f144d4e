#include "fsdp/model/testing/autograd_llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/model/testing/unit_chain.h"
#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 6;
constexpr double kTurn = 6.283185307179586;

LlamaConfig SmallConfig(int64_t kv_heads = 2) {
  LlamaConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = kv_heads;
  config.head_size = 2;
  config.rope_theta = 100;
  return config;
}

LlamaConfig Stretched() {
  LlamaConfig config = SmallConfig();
  config.head_size = 12;  // Six frequencies: unscaled, interpolated and divided.
  config.rope_scaling = {/*factor=*/8, /*low=*/1, /*high=*/4, /*original=*/32};
  return config;
}

LlamaConfig With(LlamaConfig config, bool tied, bool qk_norm, bool bias, int64_t head_size) {
  config.tied_embeddings = tied;
  config.qk_norm = qk_norm;
  config.attention_bias = bias;
  config.head_size = head_size;
  return config;
}

// Reference: the same model as one graph in double precision, from the formulas, without LibTorch's composed
// operations.
class Reference {
 public:
  Reference(const LlamaConfig& config, const ModelFacts& facts) : config_(config), facts_(facts) {}

  at::Tensor Loss(const TensorsByUnit& params, const at::Tensor& tokens, const at::Tensor& targets) const {
    at::Tensor x = at::embedding(params.front()[0], tokens);
    for (size_t u = 1; u + 1 < params.size(); ++u) x = Block(x, Named(params[u], u));
    const auto head = Named(params.back(), params.size() - 1);
    const at::Tensor output = config_.tied_embeddings ? params.front()[0] : head.at("output");
    const at::Tensor logs = at::log_softmax(at::matmul(Norm(x, head.at("norm")), output.t()), -1);
    const at::Tensor flat = targets.view({-1}), counts = flat.ne(kIgnoredTarget);
    const at::Tensor picked = logs.view({-1, config_.vocab_size}).gather(1, (flat * counts).view({-1, 1}));
    return (picked.view({-1}) * counts).sum().neg();
  }

 private:
  using ByName = std::map<std::string, at::Tensor>;

  ByName Named(const std::vector<at::Tensor>& params, size_t unit) const {
    ByName named;
    for (size_t p = 0; p < params.size(); ++p) named[facts_.units[unit].params[p].name] = params[p];
    return named;
  }

  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const {
    return x * (x.square().mean(-1, /*keepdim=*/true) + config_.norm_epsilon).rsqrt() * weight;
  }

  // By wavelength, as in Llama 3.1's code.
  double Frequency(int64_t i) const {
    const double frequency = std::pow(config_.rope_theta, -2.0 * static_cast<double>(i) / config_.head_size);
    const RopeScaling& s = config_.rope_scaling;
    if (s.factor == 1) return frequency;
    const double wavelength = kTurn / frequency, original = static_cast<double>(s.original_positions);
    if (wavelength < original / s.high_freq_factor) return frequency;
    if (wavelength > original / s.low_freq_factor) return frequency / s.factor;
    const double smooth =
        (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    return (1 - smooth) * frequency / s.factor + smooth * frequency;
  }

  // Rotates the pairs (x[i], x[i + half]).
  at::Tensor Turn(const at::Tensor& x) const {  // [batch, head, sequence, head_size]
    const int64_t half = config_.head_size / 2;
    const at::Tensor angle = at::zeros({kSequence, half}, at::kDouble);
    for (int64_t i = 0; i < half; ++i)
      angle.select(1, i).copy_(at::arange(kSequence, at::kDouble) * Frequency(i));
    const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
    return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, -1);
  }

  at::Tensor Heads(const at::Tensor& x, const ByName& p, const std::string& letter) const {
    at::Tensor y = at::matmul(x, p.at("attention.w" + letter).t());
    if (config_.attention_bias) y = y + p.at("attention.b" + letter);
    y = y.view({kBatch, kSequence, -1, config_.head_size});
    if (config_.qk_norm && letter != "v") y = Norm(y, p.at("attention." + letter + "_norm"));
    return y.transpose(1, 2);
  }

  at::Tensor Block(const at::Tensor& input, const ByName& p) const {
    const at::Tensor normed = Norm(input, p.at("attention_norm"));
    const int64_t group = config_.heads / config_.kv_heads;
    const at::Tensor q = Turn(Heads(normed, p, "q"));
    const at::Tensor k = Turn(Heads(normed, p, "k")).repeat_interleave(group, 1);
    const at::Tensor v = Heads(normed, p, "v").repeat_interleave(group, 1);
    const at::Tensor future = at::full({kSequence, kSequence}, -INFINITY, at::kDouble).triu(1);
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(config_.head_size) + future;
    const at::Tensor mixed = at::matmul(at::softmax(scores, -1), v).transpose(1, 2);
    const at::Tensor x = input + at::matmul(mixed.reshape({kBatch, kSequence, -1}), p.at("attention.wo").t());
    const at::Tensor ffn_in = Norm(x, p.at("ffn_norm"));
    const at::Tensor gate = at::matmul(ffn_in, p.at("ffn.w1").t());
    const at::Tensor up = at::matmul(ffn_in, p.at("ffn.w3").t());
    return x + at::matmul(gate * at::sigmoid(gate) * up, p.at("ffn.w2").t());
  }

  const LlamaConfig config_;
  const ModelFacts facts_;
};

UnitChain MakeChain(const LlamaConfig& config) {
  const ModelFacts facts = DescribeModel(config, kBatch, kSequence, DType::kFp32);
  auto units = MakeLlama(config, facts, kSequence, at::kCPU);
  TensorsByUnit params = TestParams(facts, units, /*scale=*/20);
  return UnitChain(facts, std::move(units), std::move(params));
}

at::Tensor SomeTokens() { return at::randint(11, {kBatch, kSequence}, at::kLong); }

struct Case {
  const char* name;
  LlamaConfig config;
};

class LlamaTest : public ::testing::TestWithParam<Case> {
 protected:
  const LlamaConfig config_ = GetParam().config;
  UnitChain chain_ = MakeChain(config_);
  const at::Tensor tokens_ = SomeTokens();
  const at::Tensor targets_ = SomeTokens();
};

TEST_P(LlamaTest, LossAndGradientsEqualReference) {
  targets_.narrow(1, 2, 2).fill_(kIgnoredTarget);
  for (ActivationSaving saving : {ActivationSaving::kAll, ActivationSaving::kInput}) {
    const at::Tensor loss = chain_.LossAndGradients({tokens_, targets_}, saving, /*grad_loss=*/2);
    const TensorsByUnit leaves = DoubleLeaves(chain_.params());
    const at::Tensor expected = Reference(config_, chain_.facts()).Loss(leaves, tokens_, targets_);
    (expected * 2).backward();
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6 * expected.item<double>());
    chain_.ExpectGradients(GradsOf(leaves), 1e-3);  // 60 other seeds: at most 5e-5.
  }
}

TEST_P(LlamaTest, RecomputationIsBitwiseEqual) {
  const at::Tensor loss = chain_.LossAndGradients({tokens_, targets_}, ActivationSaving::kAll);
  TensorsByUnit kept;
  for (const auto& unit : chain_.grads()) {
    kept.emplace_back();
    for (const at::Tensor& grad : unit) kept.back().push_back(grad.clone());
  }
  EXPECT_TRUE(loss.equal(chain_.LossAndGradients({tokens_, targets_}, ActivationSaving::kInput)));
  EXPECT_TRUE(loss.equal(chain_.Loss({tokens_, targets_})));
  for (size_t u = 0; u < kept.size(); ++u) {
    for (size_t p = 0; p < kept[u].size(); ++p) EXPECT_TRUE(chain_.grads()[u][p].equal(kept[u][p]));
  }
}

INSTANTIATE_TEST_SUITE_P(Options, LlamaTest,
                         ::testing::Values(Case{"FullAttention", SmallConfig(4)},
                                           Case{"GroupedQuery", SmallConfig(2)},
                                           Case{"MultiQuery", SmallConfig(1)},
                                           Case{"Tied", With(SmallConfig(), true, false, false, 2)},
                                           Case{"QkNorm", With(SmallConfig(), false, true, false, 4)},
                                           Case{"Bias", With(SmallConfig(), false, false, true, 2)},
                                           Case{"WideHeads", With(SmallConfig(), false, false, false, 6)},
                                           Case{"RopeScaling", Stretched()},
                                           Case{"All", With(Stretched(), true, true, true, 12)}),
                         [](const auto& info) { return std::string(info.param.name); });

// Finite differences, once, as an independent check of the reference's autograd.
TEST(Llama, GradientsEqualFiniteDifferences) {
  const LlamaConfig config = With(SmallConfig(), true, true, true, 4);
  UnitChain chain = MakeChain(config);
  const at::Tensor tokens = SomeTokens(), targets = SomeTokens();
  chain.LossAndGradients({tokens, targets}, ActivationSaving::kAll);
  const Reference reference(config, chain.facts());
  for (size_t u = 0; u < chain.params().size(); ++u) {
    for (size_t p = 0; p < chain.params()[u].size(); ++p) {
      TensorsByUnit moved = DoubleLeaves(chain.params());
      for (auto& unit : moved) {
        for (at::Tensor& leaf : unit) leaf = leaf.detach();
      }
      at::Tensor element = moved[u][p].view({-1})[1];
      constexpr double kStep = 1e-5;
      element.add_(kStep);
      const double above = reference.Loss(moved, tokens, targets).item<double>();
      element.sub_(2 * kStep);
      const double below = reference.Loss(moved, tokens, targets).item<double>();
      const double slope = (above - below) / (2 * kStep);
      const double scale = chain.grads()[u][p].abs().max().item<double>();
      EXPECT_NEAR(chain.grads()[u][p].view({-1})[1].item<double>(), slope, 1e-4 * scale)
          << chain.facts().units[u].name << " " << chain.facts().units[u].params[p].name;
    }
  }
}

TEST(Llama, FreezingLeavesOtherGradientsUnchanged) {
  const LlamaConfig config = SmallConfig();
  ModelFacts facts = DescribeModel(config, kBatch, kSequence, DType::kFp32);
  UnitChain all = MakeChain(config);
  facts.units[0].params[0].trainable = false;
  facts.units[1].params[1].trainable = false;
  UnitChain chain(facts, MakeLlama(config, facts, kSequence, at::kCPU), all.params());
  const at::Tensor tokens = SomeTokens(), targets = SomeTokens();
  all.LossAndGradients({tokens, targets}, ActivationSaving::kAll);
  chain.LossAndGradients({tokens, targets}, ActivationSaving::kAll);
  EXPECT_TRUE(chain.grads()[0][0].isnan().all().item<bool>());
  EXPECT_TRUE(chain.grads()[1][1].isnan().all().item<bool>());
  EXPECT_TRUE(chain.grads()[1][2].equal(all.grads()[1][2]));
}

TEST(Llama, Bf16UnitsGiveFp32GradientsNearFp32) {
  const LlamaConfig config = SmallConfig();
  UnitChain exact = MakeChain(config);
  TensorsByUnit params = exact.params();
  for (auto& unit : params) {
    for (at::Tensor& param : unit) param = param.to(at::kBFloat16);
  }
  UnitChain chain(exact.facts(), MakeLlama(config, exact.facts(), kSequence, at::kCPU), params);
  const at::Tensor tokens = SomeTokens();
  exact.LossAndGradients({tokens, tokens}, ActivationSaving::kAll);
  EXPECT_EQ(chain.LossAndGradients({tokens, tokens}, ActivationSaving::kAll).scalar_type(), at::kFloat);
  const at::Tensor &output = chain.grads().back()[1], &expected = exact.grads().back()[1];
  const double error = (output - expected).norm().item<double>() / expected.norm().item<double>();
  EXPECT_LT(error, 0.05);
  EXPECT_GT(error, 0);
}

}  // namespace
}  // namespace fsdpd
