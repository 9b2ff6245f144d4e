// Example plug-in: a byte-level language model of residual blocks over the last few tokens. It shows the
// three parts of a plug-in: the description of the model, the forward of each unit (LibTorch's autograd
// computes the backward), and the exported symbol.
//
//   bazel build //examples/plugin:residual_mlp.so //fsdp:fsdpd-rank
//   .build/bin/fsdp/fsdpd-rank --describe-plugin .build/bin/examples/plugin/residual_mlp.so \
//     --args '{"layers": 2}' > residual_mlp.json
//   fsdpctl submit -f job.yaml   # model: {plugin: {path: residual_mlp.so, description: residual_mlp.json}}
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/pad.h>

#include <cstdio>
#include <stdexcept>

#include "fsdp/model/autograd/autograd_unit.h"
#include "fsdp/model/plugin_entry.h"

namespace {

using fsdpd::UnitInput;
using fsdpd::UnitOutput;
using Params = std::vector<at::Tensor>;

constexpr int64_t kVocab = 256;
constexpr int64_t kWidth = 32;
constexpr int64_t kInner = 64;

UnitOutput Embed(const UnitInput& input, const Params& p) {
  return UnitOutput{at::embedding(p[0], input.tokens), {}};
}

// Each token sees itself and the token before it, so n blocks see n tokens back.
UnitOutput Block(const UnitInput& input, const Params& p) {
  const at::Tensor& x = input.hidden;
  const at::Tensor before = at::pad(x.narrow(1, 0, x.size(1) - 1), {0, 0, 1, 0});
  const at::Tensor seen = at::layer_norm(x + before, {kWidth}, p[0], {});
  return UnitOutput{x + at::linear(at::gelu(at::linear(seen, p[1], p[2])), p[3]), {}};
}

UnitOutput Head(const UnitInput& input, const Params& p) {
  const at::Tensor logits = at::linear(at::layer_norm(input.hidden, {kWidth}, p[0], {}), p[1]);
  return UnitOutput{{},
                    at::cross_entropy_loss(logits.view({-1, kVocab}).to(at::kFloat), input.targets.view({-1}),
                                           {}, at::Reduction::Sum, fsdpd::kIgnoredTarget)};
}

class ResidualMlp : public fsdpd::UserModel {
 public:
  explicit ResidualMlp(int layers) : layers_(layers) {}

  fsdpd::ModelDescription Describe() const override {
    fsdpd::ModelDescription model;
    model.vocab_size = kVocab;
    model.units.push_back({"embedding", {{"weight", {kVocab, kWidth}}}, "", 0, 0, 0, kWidth});
    for (int layer = 0; layer < layers_; ++layer) {
      fsdpd::UnitDescription block{"layer." + std::to_string(layer),
                                   {{"norm", {kWidth}, false},
                                    {"w1", {kInner, kWidth}},
                                    {"b1", {kInner}, false},
                                    {"w2", {kWidth, kInner}}}};
      // Values that autograd saves per token: x, its shifted copy, the norm's input and output; GELU's input
      // and output.
      block.saved_values = 4 * kWidth + 2 * kInner;
      block.workspace_values = kInner + kWidth;
      block.output_values = kWidth;
      block.flops_per_token = 2.0 * 2 * kWidth * kInner;
      model.units.push_back(std::move(block));
    }
    fsdpd::UnitDescription head{"head", {{"norm", {kWidth}, false}, {"output", {kVocab, kWidth}}}};
    head.saved_values = 2 * kWidth + 2 * kVocab;
    head.workspace_values = kVocab;
    head.flops_per_token = 2.0 * kWidth * kVocab;
    model.units.push_back(std::move(head));
    return model;
  }

  std::vector<std::unique_ptr<fsdpd::Unit>> MakeUnits(const fsdpd::ModelFacts& facts,
                                                      at::Device /*device*/) const override {
    std::vector<std::unique_ptr<fsdpd::Unit>> units;
    for (const fsdpd::UnitFacts& unit : facts.units) {
      const fsdpd::UnitForward forward = units.empty()                            ? Embed
                                         : units.size() + 1 == facts.units.size() ? Head
                                                                                  : Block;
      units.push_back(std::make_unique<fsdpd::AutogradUnit>(unit, fsdpd::DefaultInits(unit), forward));
    }
    return units;
  }

 private:
  const int layers_;
};

std::unique_ptr<fsdpd::UserModel> Make(const std::string& args) {
  int layers = 0;
  if (std::sscanf(args.c_str(), R"({"layers": %d})", &layers) != 1 || layers < 1) {
    throw std::invalid_argument(R"(args must be {"layers": N}, not ')" + args + "'");
  }
  return std::make_unique<ResidualMlp>(layers);
}

}  // namespace

FSDPD_PLUGIN(Make)
