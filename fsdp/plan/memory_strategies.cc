#include "fsdp/plan/memory_strategies.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/predict/simulate.h"

namespace fsdpd {
namespace {

// Every micro-batch from this one on takes the same time.
constexpr int64_t kMicroBatches = 3;

class StrategySearch {
 public:
  StrategySearch(const Spec& spec, const FixedRecompute& held, int64_t ranks_per_node)
      : spec_(spec),
        held_(held),
        placement_({ranks_per_node}),
        model_(DescribeSpec(spec)),
        layout_(MakeLayout(model_, LayoutOptionsOf(spec))),
        program_(CompileProgram(spec, model_, layout_)) {}

  std::vector<MemoryStrategy> Find() {
    MemoryStrategy least = With(0);
    if (Fits(least) && (least.recompute.recompute == Recompute::kNone || least.recompute.layers == 0))
      return {least};
    std::vector<MemoryStrategy> strategies;
    for (const int64_t layers : OffloadsToTry(BlocksOf(model_))) {
      for (const MemoryStrategy& strategy : Both(With(layers))) {
        if (strategy.peak_bytes < least.peak_bytes) least = strategy;
        if (Fits(strategy)) strategies.push_back(strategy);
      }
    }
    if (strategies.empty()) return {least};
    for (MemoryStrategy& strategy : strategies) strategy.step_seconds = StepOf(strategy);
    std::stable_sort(
        strategies.begin(), strategies.end(),
        [](const MemoryStrategy& a, const MemoryStrategy& b) { return a.step_seconds < b.step_seconds; });
    return strategies;
  }

 private:
  bool Fits(const MemoryStrategy& strategy) const { return strategy.peak_bytes <= spec_.memory_budget_bytes; }

  Spec SpecOf(const MemoryStrategy& strategy) const {
    Spec spec = spec_;
    spec.offloaded_layers = strategy.offloaded_layers;
    spec.recompute = strategy.recompute.recompute;
    spec.recompute_layers = strategy.recompute.layers;
    return spec;
  }

  // Program buffers do not depend on recompute or offload, so one program serves all strategies.
  MemoryStrategy With(int64_t layers) const {
    MemoryStrategy strategy;
    strategy.offloaded_layers = layers;
    const int64_t all = held_.layers.value_or(BlocksOf(model_));
    strategy.recompute = {held_.kind.value_or(Recompute::kFull), all};
    if (!held_.kind.has_value()) {
      strategy.recompute = CheapestRecompute(SpecOf(strategy), model_, layout_, program_, held_.layers)
                               .value_or(RecomputeChoice{Recompute::kFull, all});
    }
    strategy.peak_bytes = PlanMemory(SpecOf(strategy), model_, layout_, program_).peak_bytes;
    return strategy;
  }

  // A strategy that fits without recompute may be faster with recompute on offloaded layers, because less
  // data crosses the link.
  std::vector<MemoryStrategy> Both(const MemoryStrategy& strategy) const {
    if (held_.kind.has_value() || strategy.offloaded_layers == 0 ||
        strategy.recompute.recompute != Recompute::kNone)
      return {strategy};
    MemoryStrategy less = strategy;
    less.recompute = {Recompute::kSelective, held_.layers.value_or(0)};
    less.peak_bytes = PlanMemory(SpecOf(less), model_, layout_, program_).peak_bytes;
    return {strategy, less};
  }

  double StepOf(const MemoryStrategy& strategy) const {
    const int64_t count = spec_.micro_batches_per_step();
    const double step = Simulated(strategy, std::min(count, kMicroBatches));
    if (count <= kMicroBatches) return step;
    return step +
           static_cast<double>(count - kMicroBatches) * (step - Simulated(strategy, kMicroBatches - 1));
  }

  double Simulated(const MemoryStrategy& strategy, int64_t micro_batches) const {
    Spec spec = SpecOf(strategy);
    spec.global_batch = spec.global_batch / spec.micro_batches_per_step() * micro_batches;
    const Program program = CompileProgram(spec, model_, layout_);
    return Simulate(spec, model_, layout_, program, DefaultProfile(spec.device), placement_).step_seconds;
  }

  const Spec spec_;
  const FixedRecompute held_;
  const Placement placement_;
  const ModelFacts model_;
  const Layout layout_;
  const Program program_;
};

}  // namespace

std::vector<MemoryStrategy> MemoryStrategies(const Spec& spec, const FixedRecompute& held,
                                             int64_t ranks_per_node) {
  return StrategySearch(spec, held, ranks_per_node).Find();
}

std::vector<int64_t> OffloadsToTry(int64_t blocks) {
  constexpr int64_t kTries = 10;
  const int64_t step = (blocks + kTries - 1) / kTries;
  std::vector<int64_t> tries = {0};
  while (tries.back() < blocks) tries.push_back(std::min(tries.back() + step, blocks));
  return tries;
}

std::string Describe(const RecomputeChoice& choice) {
  if (choice.recompute == Recompute::kNone) return "none";
  return absl::StrCat(choice.recompute == Recompute::kFull ? "full" : "selective", " on ", choice.layers,
                      choice.layers == 1 ? " layer" : " layers");
}

}  // namespace fsdpd
