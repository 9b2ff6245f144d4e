// Plug-in for plugin_test; the environment variable FSDPD_TEST_PLUGIN selects a defect.
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>

#include <cstdlib>
#include <stdexcept>

#include "fsdp/model/autograd/autograd_unit.h"
#include "fsdp/model/plugin_entry.h"

namespace {

using fsdpd::UnitInput;
using fsdpd::UnitOutput;
using Tensors = std::vector<at::Tensor>;

bool Wrong(const char* what) {
  const char* asked = std::getenv("FSDPD_TEST_PLUGIN");
  return asked != nullptr && std::string(asked) == what;
}

// Logits are the product of embedding and head matrix. `args` is the width.
class Bigram : public fsdpd::UserModel {
 public:
  explicit Bigram(int64_t width) : width_(width) {}

  fsdpd::ModelDescription Describe() const override {
    fsdpd::ModelDescription model;
    model.vocab_size = 8;
    model.units = {{"embedding", {{"weight", {8, width_}}}, "", 0, 0, 0, width_},
                   {"head", {{"output", {8, width_}}}, "", width_ + 8}};
    return model;
  }

  std::vector<std::unique_ptr<fsdpd::Unit>> MakeUnits(const fsdpd::ModelFacts& facts,
                                                      at::Device /*device*/) const override {
    if (Wrong("units")) at::linear(at::empty({2, 3}), at::empty({2, 2}));  // Throws c10::Error.
    const auto embed = [](const UnitInput& in, const Tensors& p) {
      return UnitOutput{at::embedding(p[0], in.tokens), {}};
    };
    const auto loss = [](const UnitInput& in, const Tensors& p) {
      const at::Tensor logits = at::linear(in.hidden, p[0]).view({-1, 8});
      return UnitOutput{
          {}, at::nll_loss(at::log_softmax(logits, 1), in.targets.view({-1}), {}, at::Reduction::Sum)};
    };
    std::vector<std::unique_ptr<fsdpd::Unit>> units;
    units.push_back(
        std::make_unique<fsdpd::AutogradUnit>(facts.units[0], DefaultInits(facts.units[0]), embed));
    units.push_back(
        std::make_unique<fsdpd::AutogradUnit>(facts.units[1], DefaultInits(facts.units[1]), loss));
    return units;
  }

 private:
  const int64_t width_;
};

fsdpd::UserModel* Make(const std::string& args) {
  if (Wrong("null")) return nullptr;
  const int width = std::atoi(args.c_str());
  if (width <= 0) throw std::invalid_argument("args: invalid width (got '" + args + "')");
  return new Bigram(width);
}

}  // namespace

extern "C" const fsdpd::PluginEntry* fsdpd_plugin() {
  static thread_local fsdpd::PluginEntry entry;
  entry = {Wrong("abi") ? 7 : fsdpd::kPluginAbi, Wrong("version") ? "0.0.9" : fsdpd::kVersion,
           Wrong("torch") ? "1.13.0" : TORCH_VERSION, Make};
  return &entry;
}
