// Model of the test plug-ins: embedding, one layer and head, with a hook in the layer's forward.
#pragma once

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/model/autograd/autograd_unit.h"
#include "fsdp/model/plugin_entry.h"

namespace fsdpd {

class SmallModel : public UserModel {
 public:
  // `in_layer`: called at the start of each forward of the layer.
  explicit SmallModel(std::function<void()> in_layer) : in_layer_(std::move(in_layer)) {}

  ModelDescription Describe() const override {
    ModelDescription model;
    model.vocab_size = kVocab;
    model.units = {{"embedding", {{"weight", {kVocab, kWidth}}}, "", 0, 0, 0, kWidth},
                   {"layer.0", {{"weight", {kWidth, kWidth}}}, "", kWidth, 0, 0, kWidth},
                   {"head", {{"output", {kVocab, kWidth}}}, "", kWidth + kVocab}};
    return model;
  }

  std::vector<std::unique_ptr<Unit>> MakeUnits(const ModelFacts& facts,
                                               at::Device /*device*/) const override {
    const auto layer = [in_layer = in_layer_](const UnitInput& input, const Tensors& p) {
      in_layer();
      return UnitOutput{at::linear(input.hidden, p[0]), {}};
    };
    std::vector<std::unique_ptr<Unit>> units;
    for (const UnitForward& forward : {UnitForward(Embed), UnitForward(layer), UnitForward(Head)}) {
      const UnitFacts& unit = facts.units[units.size()];
      units.push_back(std::make_unique<AutogradUnit>(unit, DefaultInits(unit), forward));
    }
    return units;
  }

 private:
  using Tensors = std::vector<at::Tensor>;
  static constexpr int64_t kVocab = 256;
  static constexpr int64_t kWidth = 16;

  static UnitOutput Embed(const UnitInput& input, const Tensors& p) {
    return UnitOutput{at::embedding(p[0], input.tokens), {}};
  }

  static UnitOutput Head(const UnitInput& input, const Tensors& p) {
    const at::Tensor logits = at::linear(input.hidden, p[0]).view({-1, kVocab});
    return UnitOutput{
        {}, at::nll_loss(at::log_softmax(logits, 1), input.targets.view({-1}), {}, at::Reduction::Sum)};
  }

  const std::function<void()> in_layer_;
};

}  // namespace fsdpd
