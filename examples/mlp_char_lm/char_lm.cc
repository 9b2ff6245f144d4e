#include "examples/mlp_char_lm/char_lm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <string>

namespace {

constexpr int64_t kVocab = 256;

struct EmbeddingImpl : torch::nn::Module {
  explicit EmbeddingImpl(int64_t width)
      : table(register_module("table", torch::nn::Embedding(kVocab, width))) {}

  torch::nn::Embedding table;
};

// Residual block over a token and the token `reach` positions before it; block n has reach 2^n.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t reach)
      : reach(reach),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(2 * width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor normed = norm(x);
    const int64_t back = std::min(reach, x.size(1));
    const at::Tensor before =
        at::cat({at::zeros_like(normed.narrow(1, 0, back)), normed.narrow(1, 0, x.size(1) - back)}, 1);
    return x + down(at::gelu(up(at::cat({normed, before}, 2))));
  }

  const int64_t reach;
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        output(register_module("output", torch::nn::Linear(width, kVocab))) {}

  // The sum (not the mean) over targets that are not ignored: the engine divides by the global number of
  // targets.
  at::Tensor loss(const at::Tensor& x, const at::Tensor& targets) {
    const at::Tensor logits = output(norm(x)).view({-1, kVocab}).to(torch::kFloat);
    return torch::nn::functional::cross_entropy(logits, targets.view({-1}),
                                                torch::nn::functional::CrossEntropyFuncOptions()
                                                    .reduction(torch::kSum)
                                                    .ignore_index(fsdpd::kIgnoredTarget));
  }

  torch::nn::LayerNorm norm;
  torch::nn::Linear output;
};

// Describes a unit whose parameters are those of a module. Weight decay applies to matrices only.
fsdpd::UnitDescription Unit(const std::string& name, const torch::nn::Module& module) {
  fsdpd::UnitDescription unit;
  unit.name = name;
  for (const auto& param : module.named_parameters()) {
    unit.params.push_back({param.key(), param.value().sizes().vec(), /*decay=*/param.value().dim() > 1});
  }
  return unit;
}

}  // namespace

fsdpd::ModelDescription CharLm::Describe() const {
  fsdpd::ModelDescription model;
  model.vocab_size = kVocab;
  model.units.push_back(Unit("embedding", EmbeddingImpl(width_)));
  model.units.back().output_values = width_;
  for (int64_t layer = 0; layer < layers_; ++layer) {
    fsdpd::UnitDescription block = Unit("layer." + std::to_string(layer), BlockImpl(width_, 1));
    // Values that LibTorch's autograd saves per token: x, the norm's output, their concatenation with the
    // shifted copy (2 * width), and the input and output of GELU.
    block.saved_values = 4 * width_ + 2 * 4 * width_;
    block.workspace_values = 2 * 4 * width_;
    block.output_values = width_;
    block.flops_per_token = 2.0 * 3 * width_ * 4 * width_;
    model.units.push_back(block);
  }
  model.units.push_back(Unit("head", HeadImpl(width_)));
  model.units.back().saved_values = 2 * width_ + 2 * kVocab;
  model.units.back().workspace_values = kVocab;
  model.units.back().flops_per_token = 2.0 * width_ * kVocab;
  return model;
}

std::vector<std::unique_ptr<fsdpd::Unit>> CharLm::MakeUnits(const fsdpd::ModelFacts& facts,
                                                            at::Device /*device*/) const {
  std::vector<std::unique_ptr<fsdpd::Unit>> units;
  const auto embedding = std::make_shared<EmbeddingImpl>(width_);
  units.push_back(fsdpd::MakeModuleUnit(facts.units[0], embedding, [embedding](const fsdpd::UnitInput& in) {
    return fsdpd::UnitOutput{embedding->table(in.tokens), {}};
  }));
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const auto block = std::make_shared<BlockImpl>(width_, int64_t{1} << layer);
    units.push_back(
        fsdpd::MakeModuleUnit(facts.units[units.size()], block, [block](const fsdpd::UnitInput& in) {
          return fsdpd::UnitOutput{block->forward(in.hidden), {}};
        }));
  }
  const auto head = std::make_shared<HeadImpl>(width_);
  units.push_back(fsdpd::MakeModuleUnit(facts.units.back(), head, [head](const fsdpd::UnitInput& in) {
    return fsdpd::UnitOutput{{}, head->loss(in.hidden, in.targets)};
  }));
  return units;
}
