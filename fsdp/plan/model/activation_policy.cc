#include "fsdp/plan/model/activation_policy.h"

#include <algorithm>

namespace fsdpd {
namespace {

// Upper bound on the tensors that a layer saves; with grouped heads, latents and sequence parts about a
// dozen.
constexpr int64_t kMaxSavedTensors = 64;

// Index among the layers of the whole model.
int64_t NumberOf(const ModelFacts& model, int unit) {
  const UnitRun& run = model.stage.runs[model.stage.RunOf(unit)];
  return run.first_block + std::count_if(model.units.begin() + run.begin, model.units.begin() + unit,
                                         [](const UnitFacts& u) { return u.kind == UnitKind::kBlock; });
}

// Number of offloaded layers among the first `over` layers.
struct Spread {
  int64_t count = 0;
  int64_t over = 1;

  bool Has(int64_t block) const { return block < over && block * count % over < count; }
  int64_t Before(int64_t block) const {
    return count == 0 || block == 0 ? 0 : std::min(count, (block - 1) * count / over + 1);
  }
};

Spread OffloadedOf(const Spec& spec, const ModelFacts& model) {
  if (spec.offloaded_layers == 0) return {};
  const int64_t blocks = BlocksOf(model), count = std::min(spec.offloaded_layers, blocks);
  return {count, std::max<int64_t>(1, count < blocks ? blocks - 1 : blocks)};
}

}  // namespace

int64_t BlocksOf(const ModelFacts& model) {
  return std::count_if(model.units.begin(), model.units.end(),
                       [](const UnitFacts& unit) { return unit.kind == UnitKind::kBlock; });
}

Recompute RecomputeOf(const Spec& spec, const ModelFacts& model, int unit) {
  if (model.units[unit].kind != UnitKind::kBlock) return Recompute::kNone;
  const Spread offloaded = OffloadedOf(spec, model);
  const int64_t block = NumberOf(model, unit);
  if (offloaded.Has(block)) return std::min(spec.recompute, Recompute::kSelective);
  if (block - offloaded.Before(block) < spec.recompute_layers) return spec.recompute;
  return spec.recompute == Recompute::kFull ? Recompute::kSelective : Recompute::kNone;
}

int64_t SavedBytesOf(const Spec& spec, const ModelFacts& model, int unit) {
  return model.units[unit].saved_bytes.With(RecomputeOf(spec, model, unit));
}

bool OffloadsActivations(const Spec& spec, const ModelFacts& model, int unit) {
  if (spec.offloaded_layers == 0) return false;
  return model.units[unit].kind == UnitKind::kBlock && OffloadedOf(spec, model).Has(NumberOf(model, unit));
}

int64_t OffloadedBytes(const Spec& spec, const ModelFacts& model, int unit) {
  if (!OffloadsActivations(spec, model, unit)) return 0;
  return SavedBytesOf(spec, model, unit) + kMaxSavedTensors * kSavedAlignBytes;
}

std::string WhyLayersStay(const ModelConfig& model) {
  const auto* llama = std::get_if<LlamaConfig>(&model);
  if (llama == nullptr)
    return "activation offload does not support this model: its saved activations are only estimated";
  if (llama->experts.count > 0)
    return "activation offload does not support mixture-of-experts layers: their saved activations depend on "
           "routing";
  return "";
}

}  // namespace fsdpd
