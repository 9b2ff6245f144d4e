#include "fsdp/model/autograd/gpt2.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "base/check.h"
#include "fsdp/model/autograd/autograd_unit.h"
#include "fsdp/model/autograd/linear_cross_entropy.h"

namespace fsdpd {
namespace {

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                const Gpt2Config& config) {
  return at::layer_norm(x, {config.hidden_size}, weight, bias, config.norm_epsilon);
}

at::Tensor Attention(const at::Tensor& x, const at::Tensor& wqkv, const at::Tensor& bqkv,
                     const Gpt2Config& config) {
  const int64_t batch = x.size(0), sequence = x.size(1);
  const at::Tensor qkv =
      at::linear(x, wqkv, bqkv).view({batch, sequence, 3, config.heads, config.head_size()});
  const auto part = [&](int64_t index) { return qkv.select(2, index).transpose(1, 2); };
  const at::Tensor mixed = at::scaled_dot_product_attention(part(0), part(1), part(2), /*attn_mask=*/{},
                                                            /*dropout_p=*/0.0, /*is_causal=*/true);
  return mixed.transpose(1, 2).reshape({batch, sequence, config.hidden_size});
}

UnitForward EmbeddingForward() {
  return [](const UnitInput& input, const std::vector<at::Tensor>& params) {
    const at::Tensor positions = input.positions.defined() ? at::embedding(params[1], input.positions)
                                                           : params[1].narrow(0, 0, input.tokens.size(1));
    return UnitOutput{at::embedding(params[0], input.tokens) + positions, at::Tensor()};
  };
}

UnitForward BlockForward(const Gpt2Config& config) {
  return [config](const UnitInput& input, const std::vector<at::Tensor>& p) {
    FSDPD_CHECK(p.size() == 12 && input.documents.empty());
    at::Tensor x = input.hidden;
    const at::Tensor mixed = Attention(Norm(x, p[0], p[1], config), p[2], p[3], config);
    x = x + at::linear(mixed, p[4], p[5]);
    const at::Tensor wide = at::linear(Norm(x, p[6], p[7], config), p[8], p[9]);
    return UnitOutput{x + at::linear(at::gelu(wide, "tanh"), p[10], p[11]), at::Tensor()};
  };
}

// params[2] is the head's own output matrix, or the borrowed embedding's, followed by its positions.
UnitForward HeadForward(const Gpt2Config& config) {
  return [config](const UnitInput& input, const std::vector<at::Tensor>& params) {
    const at::Tensor normed = Norm(input.hidden, params[0], params[1], config);
    return UnitOutput{at::Tensor(), LinearCrossEntropy(normed.view({-1, config.hidden_size}), params[2],
                                                       input.targets.reshape({-1}))};
  };
}

UnitForward ForwardOf(UnitKind kind, const Gpt2Config& config) {
  switch (kind) {
    case UnitKind::kEmbedding:
      return EmbeddingForward();
    case UnitKind::kBlock:
      return BlockForward(config);
    case UnitKind::kHead:
      return HeadForward(config);
  }
  return nullptr;
}

}  // namespace

std::vector<std::unique_ptr<Unit>> MakeGpt2(const Gpt2Config& config, const ModelFacts& facts) {
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitFacts& unit : facts.units) {
    units.push_back(std::make_unique<AutogradUnit>(unit, DefaultInits(unit), ForwardOf(unit.kind, config)));
  }
  return units;
}

}  // namespace fsdpd
