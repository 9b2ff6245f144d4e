#include "fsdp/model/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include "base/check.h"
#include "fsdp/model/autograd_unit.h"

namespace fsdpd {
namespace {

constexpr double kMatrixDeviation = 0.02;

// cos and sin of every position and frequency, [1, sequence, 1, head_size] fp32; shared by all blocks.
struct Rotary {
  at::Tensor cos;
  at::Tensor sin;
};

Rotary MakeRotary(const LlamaConfig& config, int64_t sequence_length, at::Device device) {
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  const int64_t head = config.head_size();
  const at::Tensor exponents = at::arange(0, head, 2, fp32).div(static_cast<double>(head));
  const at::Tensor frequencies = at::pow(config.rope_theta, exponents).reciprocal();
  const at::Tensor angles = at::outer(at::arange(sequence_length, fp32), frequencies);
  const at::Tensor both = at::cat({angles, angles}, -1).view({1, sequence_length, 1, head});
  return {both.cos(), both.sin()};
}

at::Tensor Rotate(const at::Tensor& x, const Rotary& rotary) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor turned = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return (x.to(at::kFloat) * rotary.cos + turned.to(at::kFloat) * rotary.sin).to(x.scalar_type());
}

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, const LlamaConfig& config) {
  return at::rms_norm(x, {config.hidden_size}, weight, config.norm_epsilon);
}

at::Tensor Attention(const at::Tensor& x, const at::Tensor& wq, const at::Tensor& wk, const at::Tensor& wv,
                     const at::Tensor& wo, const LlamaConfig& config, const Rotary& rotary) {
  const int64_t batch = x.size(0);
  const int64_t sequence = x.size(1);
  const int64_t head = config.head_size();
  const at::Tensor q = Rotate(at::linear(x, wq).view({batch, sequence, config.heads, head}), rotary);
  const at::Tensor k = Rotate(at::linear(x, wk).view({batch, sequence, config.kv_heads, head}), rotary);
  const at::Tensor v = at::linear(x, wv).view({batch, sequence, config.kv_heads, head});
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), /*attn_mask=*/{}, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*scale=*/std::nullopt, /*enable_gqa=*/config.kv_heads != config.heads);
  return at::linear(mixed.transpose(1, 2).reshape({batch, sequence, config.heads * head}), wo);
}

UnitForward EmbeddingForward() {
  return [](const UnitInput& input, const std::vector<at::Tensor>& params) {
    return UnitOutput{at::embedding(params[0], input.tokens), at::Tensor()};
  };
}

UnitForward BlockForward(const LlamaConfig& config, const Rotary& rotary) {
  return [config, rotary](const UnitInput& input, const std::vector<at::Tensor>& params) {
    const at::Tensor &attention_norm = params[0], &wq = params[1], &wk = params[2], &wv = params[3],
                     &wo = params[4];
    const at::Tensor &ffn_norm = params[5], &w1 = params[6], &w3 = params[7], &w2 = params[8];
    at::Tensor x = input.hidden;
    x = x + Attention(Norm(x, attention_norm, config), wq, wk, wv, wo, config, rotary);
    const at::Tensor normed = Norm(x, ffn_norm, config);
    x = x + at::linear(at::silu(at::linear(normed, w1)) * at::linear(normed, w3), w2);
    return UnitOutput{x, at::Tensor()};
  };
}

UnitForward HeadForward(const LlamaConfig& config) {
  return [config](const UnitInput& input, const std::vector<at::Tensor>& params) {
    const at::Tensor logits = at::linear(Norm(input.hidden, params[0], config), params[1]);
    const at::Tensor loss =
        at::cross_entropy_loss(logits.view({-1, config.vocab_size}).to(at::kFloat), input.targets.view({-1}));
    return UnitOutput{at::Tensor(), loss};
  };
}

// Matrices are normal, norms are ones: a parameter of one dimension is a norm's weight.
std::vector<ParamInit> InitsOf(const UnitFacts& facts) {
  std::vector<ParamInit> inits;
  for (const ParamFacts& param : facts.params)
    inits.push_back({param.shape.size() > 1 ? kMatrixDeviation : 0.0});
  return inits;
}

}  // namespace

std::vector<std::unique_ptr<Unit>> MakeLlama(const LlamaConfig& config, const ModelFacts& facts,
                                             int64_t sequence_length, at::Device device) {
  const Rotary rotary = MakeRotary(config, sequence_length, device);
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitFacts& unit : facts.units) {
    UnitForward forward;
    switch (unit.kind) {
      case UnitKind::kEmbedding:
        forward = EmbeddingForward();
        break;
      case UnitKind::kBlock:
        forward = BlockForward(config, rotary);
        break;
      case UnitKind::kHead:
        forward = HeadForward(config);
        break;
    }
    units.push_back(std::make_unique<AutogradUnit>(unit, InitsOf(unit), std::move(forward)));
  }
  return units;
}

}  // namespace fsdpd
