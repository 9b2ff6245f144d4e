// A plug-in for tests of hangs: its forward stands still on the ranks that a test names, and nothing else of
// them does, so that their processes live and stand where they need nobody. `args` is a folder: a rank whose
// process id is the name of a file there stands still in its layer, for as long as that is so.
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "fsdp/model/autograd/autograd_unit.h"
#include "fsdp/model/plugin_entry.h"

namespace {

using fsdpd::UnitInput;
using fsdpd::UnitOutput;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kVocab = 256;
constexpr int64_t kWidth = 16;
constexpr auto kLookEvery = std::chrono::milliseconds(10);

UnitOutput Embed(const UnitInput& input, const Tensors& p) {
  return UnitOutput{at::embedding(p[0], input.tokens), {}};
}

UnitOutput Head(const UnitInput& input, const Tensors& p) {
  const at::Tensor logits = at::linear(input.hidden, p[0]).view({-1, kVocab});
  return UnitOutput{
      {}, at::nll_loss(at::log_softmax(logits, 1), input.targets.view({-1}), {}, at::Reduction::Sum)};
}

// Embedding, one layer and head.
class Still : public fsdpd::UserModel {
 public:
  explicit Still(const std::string& folder)
      : mine_(std::filesystem::path(folder) / std::to_string(getpid())) {}

  fsdpd::ModelDescription Describe() const override {
    fsdpd::ModelDescription model;
    model.vocab_size = kVocab;
    model.units = {{"embedding", {{"weight", {kVocab, kWidth}}}, "", 0, 0, 0, kWidth},
                   {"layer.0", {{"weight", {kWidth, kWidth}}}, "", kWidth, 0, 0, kWidth},
                   {"head", {{"output", {kVocab, kWidth}}}, "", kWidth + kVocab}};
    return model;
  }

  std::vector<std::unique_ptr<fsdpd::Unit>> MakeUnits(const fsdpd::ModelFacts& facts,
                                                      at::Device /*device*/) const override {
    const auto layer = [mine = mine_](const UnitInput& input, const Tensors& p) {
      while (std::filesystem::exists(mine)) std::this_thread::sleep_for(kLookEvery);
      return UnitOutput{at::linear(input.hidden, p[0]), {}};
    };
    std::vector<std::unique_ptr<fsdpd::Unit>> units;
    for (const fsdpd::UnitForward& forward :
         {fsdpd::UnitForward(Embed), fsdpd::UnitForward(layer), fsdpd::UnitForward(Head)}) {
      const fsdpd::UnitFacts& unit = facts.units[units.size()];
      units.push_back(std::make_unique<fsdpd::AutogradUnit>(unit, fsdpd::DefaultInits(unit), forward));
    }
    return units;
  }

 private:
  const std::filesystem::path mine_;
};

std::unique_ptr<fsdpd::UserModel> Make(const std::string& args) {
  if (args.empty()) throw std::invalid_argument("args are to be a folder");
  return std::make_unique<Still>(args);
}

}  // namespace

FSDPD_PLUGIN(Make)
