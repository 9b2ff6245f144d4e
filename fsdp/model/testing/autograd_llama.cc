#include "fsdp/model/testing/autograd_llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "fsdp/model/autograd/autograd_unit.h"
#include "fsdp/model/autograd/linear_cross_entropy.h"
#include "fsdp/plan/model/latent_facts.h"

namespace fsdpd {
namespace {

// cos and sin for every position and frequency, [1, sequence, 1, head_size] fp32; shared by all blocks.
struct Rotary {
  at::Tensor cos;
  at::Tensor sin;

  // Rows for each token's position, [micro_batch, sequence, 1, head_size].
  Rotary At(const at::Tensor& positions) const {
    if (!positions.defined()) return *this;
    const auto rows = [&](const at::Tensor& table) {
      return table[0].index_select(0, positions.flatten()).unflatten(0, positions.sizes());
    };
    return {rows(cos), rows(sin)};
  }
};

// Llama 3.1 scaling: long wavelengths are divided by the factor, short ones unchanged, with interpolation in
// between.
at::Tensor Stretch(const at::Tensor& frequencies, const RopeScaling& scaling) {
  if (scaling.factor == 1) return frequencies;
  constexpr double kTurn = 6.283185307179586;
  const at::Tensor turns = frequencies * (static_cast<double>(scaling.original_positions) / kTurn);
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const at::Tensor kept = ((turns - low) / (high - low)).clamp(0, 1);  // 1: a short wavelength.
  return frequencies * (kept + (1 - kept) / scaling.factor);
}

// The fraction of each pair's frequency that YaRN leaves unscaled, as in its paper: 1 before pair `low`, 0
// from pair `high` on.
at::Tensor YarnShare(const LlamaConfig& config, const at::TensorOptions& fp32) {
  const RopeScaling& scaling = config.rope_scaling;
  constexpr double kTurn = 6.283185307179586;
  const auto size = static_cast<double>(config.rotary_size());
  const auto pair = [&](double rotations) {
    return size * std::log(static_cast<double>(scaling.original_positions) / (rotations * kTurn)) /
           (2 * std::log(config.rope_theta));
  };
  const double low = std::max(std::floor(pair(scaling.high_freq_factor)), 0.0);
  double high = std::min(std::ceil(pair(scaling.low_freq_factor)), size - 1);
  if (low == high) high += 0.001;
  return 1 - ((at::arange(config.rotary_size() / 2, fp32) - low) / (high - low)).clamp(0, 1);
}

Rotary MakeRotary(const LlamaConfig& config, int64_t sequence_length, at::Device device) {
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  const int64_t head = config.rotary_size();
  const RopeScaling& scaling = config.rope_scaling;
  const at::Tensor exponents = at::arange(0, head, 2, fp32).div(static_cast<double>(head));
  at::Tensor frequencies = at::pow(config.rope_theta, exponents).reciprocal();
  if (scaling.yarn) {
    const at::Tensor share = YarnShare(config, fp32);
    frequencies = frequencies * share + frequencies / scaling.factor * (1 - share);
  } else {
    frequencies = Stretch(frequencies, scaling);
  }
  const at::Tensor angles = at::outer(at::arange(sequence_length, fp32), frequencies);
  const at::Tensor both = at::cat({angles, angles}, -1).view({1, sequence_length, 1, head});
  return {both.cos() * scaling.RotatedScale(), both.sin() * scaling.RotatedScale()};
}

at::Tensor Rotate(const at::Tensor& x, const Rotary& rotary) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor turned = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return (x.to(at::kFloat) * rotary.cos + turned.to(at::kFloat) * rotary.sin).to(x.scalar_type());
}

// The parameters of a block; undefined if the configuration does not have them.
struct BlockParams {
  at::Tensor attention_norm, wq, bq, wk, bk, wv, bv, q_norm, k_norm, wo, ffn_norm, router, router_bias, w1,
      w3, w2, shared_w1, shared_w3, shared_w2, wq_a, q_a_norm, wq_b, wkv_a, kv_a_norm, wkv_b;

  BlockParams(const LlamaConfig& config, bool experts, const std::vector<at::Tensor>& params) {
    size_t next = 0;
    const auto take = [&](at::Tensor* into, bool present = true) {
      if (present) *into = params[next++];
    };
    take(&attention_norm);
    const bool heads = !config.latent, latents = !heads, query_latent = config.latent.query_rank > 0;
    take(&wq, !query_latent);
    take(&bq, config.attention_bias);
    take(&wk, heads);
    take(&bk, config.attention_bias);
    take(&wv, heads);
    take(&bv, config.attention_bias);
    take(&q_norm, config.qk_norm);
    take(&k_norm, config.qk_norm);
    take(&wq_a, query_latent);
    take(&wkv_a, latents);
    take(&q_a_norm, query_latent);
    take(&wq_b, query_latent);
    take(&kv_a_norm, latents);
    take(&wkv_b, latents);
    for (at::Tensor* into : {&wo, &ffn_norm}) take(into);
    take(&router, experts);
    take(&router_bias, experts && config.experts.selection_bias);
    for (at::Tensor* into : {&w1, &w3, &w2}) take(into);
    const bool shared = experts && config.experts.shared_intermediate_size > 0;
    for (at::Tensor* into : {&shared_w1, &shared_w3, &shared_w2}) take(into, shared);
    FSDPD_CHECK(next == params.size());
  }
};

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, const LlamaConfig& config) {
  return at::rms_norm(x, {x.size(-1)}, weight, config.norm_epsilon);
}

at::Tensor Attention(const at::Tensor& x, const BlockParams& p, const LlamaConfig& config,
                     const Rotary& rotary) {
  const int64_t batch = x.size(0);
  const int64_t sequence = x.size(1);
  const auto heads = [&](const at::Tensor& weight, const at::Tensor& bias) {
    return at::linear(x, weight, bias).view({batch, sequence, -1, config.head_size});
  };
  at::Tensor q = heads(p.wq, p.bq), k = heads(p.wk, p.bk);
  const at::Tensor v = heads(p.wv, p.bv);
  if (config.qk_norm) {
    q = Norm(q, p.q_norm, config);
    k = Norm(k, p.k_norm, config);
  }
  const at::Tensor mixed =
      at::scaled_dot_product_attention(Rotate(q, rotary).transpose(1, 2), Rotate(k, rotary).transpose(1, 2),
                                       v.transpose(1, 2), /*attn_mask=*/{},
                                       /*dropout_p=*/0.0, /*is_causal=*/true, /*scale=*/std::nullopt,
                                       /*enable_gqa=*/config.kv_heads != config.heads);
  return at::linear(mixed.transpose(1, 2).reshape({batch, sequence, -1}), p.wo);
}

// Interleaved pairs are first moved to where the halves of a head are.
at::Tensor RotatePairs(const at::Tensor& x, const Rotary& rotary, bool interleaved) {
  return Rotate(interleaved ? x.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2) : x, rotary);
}

at::Tensor LatentAttention(const at::Tensor& x, const BlockParams& p, const LlamaConfig& config,
                           const Rotary& rotary) {
  const LatentConfig& latent = config.latent;
  const int64_t plain = latent.plain_head_size, rotated = latent.rotary_head_size;
  const auto norm = [](const at::Tensor& of, const at::Tensor& weight) {
    return at::rms_norm(of, {of.size(-1)}, weight, kLatentNormEpsilon);
  };
  const at::Tensor flat_q =
      p.wq.defined() ? at::linear(x, p.wq) : at::linear(norm(at::linear(x, p.wq_a), p.q_a_norm), p.wq_b);
  const at::Tensor q = flat_q.unflatten(-1, {config.heads, -1});
  const at::Tensor both = at::linear(x, p.wkv_a);
  const at::Tensor kv = at::linear(norm(both.narrow(-1, 0, latent.rank), p.kv_a_norm), p.wkv_b)
                            .unflatten(-1, {config.heads, -1});
  const auto turn = [&](const at::Tensor& of) { return RotatePairs(of, rotary, latent.interleaved); };
  const at::Tensor key = turn(both.narrow(-1, latent.rank, rotated).unsqueeze(2));
  const at::Tensor queries = at::cat({q.narrow(-1, 0, plain), turn(q.narrow(-1, plain, rotated))}, -1);
  const at::Tensor keys = at::cat({kv.narrow(-1, 0, plain), key.expand({-1, -1, config.heads, -1})}, -1);
  const double scale = config.rope_scaling.ScoreScale() / std::sqrt(static_cast<double>(config.head_size));
  const at::Tensor scores =
      at::matmul(queries.transpose(1, 2), keys.transpose(1, 2).transpose(-1, -2)).to(at::kFloat) * scale;
  const at::Tensor future = at::ones({x.size(1), x.size(1)}, scores.options().dtype(at::kBool)).triu(1);
  const at::Tensor weights =
      at::softmax(scores.masked_fill(future, -std::numeric_limits<double>::infinity()), -1);
  const at::Tensor values = kv.narrow(-1, plain, latent.value_head_size).transpose(1, 2);
  return at::linear(at::matmul(weights.to(x.scalar_type()), values).transpose(1, 2).flatten(-2), p.wo);
}

UnitForward EmbeddingForward() {
  return [](const UnitInput& input, const std::vector<at::Tensor>& params) {
    return UnitOutput{at::embedding(params[0], input.tokens), at::Tensor()};
  };
}

at::Tensor FeedForward(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w3,
                       const at::Tensor& w2) {
  return at::linear(at::silu(at::linear(x, w1)) * at::linear(x, w3), w2);
}

// Computes every expert for every token, with a weight of zero where the token is not routed to it.
at::Tensor AllExperts(const at::Tensor& x, const BlockParams& p, const ExpertsConfig& config) {
  const at::Tensor products = at::linear(x, p.router);
  const at::Tensor scores = config.sigmoid ? products.sigmoid() : at::softmax(products, -1);
  at::Tensor biased = p.router_bias.defined() ? scores + p.router_bias : scores;
  if (config.groups_per_token < config.groups) {
    const at::Tensor grouped = biased.unflatten(-1, {config.groups, -1});
    const int64_t counted = config.groups_by_best ? 1 : 2;
    const auto best = std::get<0>(grouped.topk(counted)).sum(-1).topk(config.groups_per_token);
    const at::Tensor allowed = at::zeros_like(grouped.select(-1, 0)).scatter(-1, std::get<1>(best), 1);
    biased = (grouped + (allowed.unsqueeze(-1) - 1) * 1e6).flatten(-2);
  }
  const at::Tensor experts = std::get<1>(biased.topk(config.per_token));
  at::Tensor weights = at::zeros_like(scores).scatter(-1, experts, scores.gather(-1, experts));
  if (config.normalized) weights = weights / weights.sum(-1, /*keepdim=*/true);
  weights = weights * config.weight_scale;
  at::Tensor sum =
      p.shared_w1.defined() ? FeedForward(x, p.shared_w1, p.shared_w3, p.shared_w2) : at::zeros_like(x);
  for (int64_t e = 0; e < config.count; ++e)
    sum = sum + weights.narrow(-1, e, 1) * FeedForward(x, p.w1[e], p.w3[e], p.w2[e]);
  return sum;
}

UnitForward BlockForward(const LlamaConfig& config, const Rotary& rotary, bool experts) {
  return [config, rotary, experts](const UnitInput& input, const std::vector<at::Tensor>& params) {
    const BlockParams p(config, experts, params);
    FSDPD_CHECK(input.documents.empty());
    at::Tensor x = input.hidden;
    const auto attention = config.latent ? LatentAttention : Attention;
    x = x + attention(Norm(x, p.attention_norm, config), p, config, rotary.At(input.positions));
    const at::Tensor normed = Norm(x, p.ffn_norm, config);
    x = x + (experts ? AllExperts(normed, p, config.experts) : FeedForward(normed, p.w1, p.w3, p.w2));
    return UnitOutput{x, at::Tensor()};
  };
}

// params[1] is the head's own output matrix, or the borrowed embedding's.
UnitForward HeadForward(const LlamaConfig& config) {
  return [config](const UnitInput& input, const std::vector<at::Tensor>& params) {
    const at::Tensor normed = Norm(input.hidden, params[0], config);
    return UnitOutput{at::Tensor(), LinearCrossEntropy(normed.view({-1, config.hidden_size}), params[1],
                                                       input.targets.reshape({-1}))};
  };
}

}  // namespace

std::vector<std::unique_ptr<Unit>> MakeLlama(const LlamaConfig& config, const ModelFacts& facts,
                                             int64_t sequence_length, at::Device device) {
  const Rotary rotary = MakeRotary(config, sequence_length, device);
  std::vector<std::unique_ptr<Unit>> units;
  int64_t layer = 0;
  for (const UnitFacts& unit : facts.units) {
    UnitForward forward;
    switch (unit.kind) {
      case UnitKind::kEmbedding:
        forward = EmbeddingForward();
        break;
      case UnitKind::kBlock:
        forward = BlockForward(config, rotary, config.HasExperts(layer++));
        break;
      case UnitKind::kHead:
        forward = HeadForward(config);
        break;
    }
    units.push_back(std::make_unique<AutogradUnit>(unit, DefaultInits(unit), std::move(forward)));
  }
  return units;
}

}  // namespace fsdpd
