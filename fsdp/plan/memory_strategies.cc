#include "fsdp/plan/memory_strategies.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/predict/simulate.h"

namespace fsdpd {
namespace {

// Every micro-batch from this one on takes the same time.
constexpr int64_t kMicroBatches = 3;

class Ways {
 public:
  Ways(const Spec& spec, const HeldRecompute& held, int64_t ranks_per_node)
      : spec_(spec),
        held_(held),
        placement_({ranks_per_node}),
        model_(DescribeSpec(spec)),
        layout_(MakeLayout(model_, LayoutOptionsOf(spec))),
        program_(CompileProgram(spec, model_, layout_)) {}

  std::vector<MemoryWay> Find() {
    MemoryWay least = With(0);
    if (Fits(least) && (least.recompute.recompute == Recompute::kNone || least.recompute.layers == 0))
      return {least};
    std::vector<MemoryWay> ways;
    for (const int64_t layers : OffloadsToTry(BlocksOf(model_))) {
      for (const MemoryWay& way : Both(With(layers))) {
        if (way.peak_bytes < least.peak_bytes) least = way;
        if (Fits(way)) ways.push_back(way);
      }
    }
    if (ways.empty()) return {least};
    for (MemoryWay& way : ways) way.step_seconds = StepOf(way);
    std::stable_sort(ways.begin(), ways.end(),
                     [](const MemoryWay& a, const MemoryWay& b) { return a.step_seconds < b.step_seconds; });
    return ways;
  }

 private:
  bool Fits(const MemoryWay& way) const { return way.peak_bytes <= spec_.memory_budget_bytes; }

  Spec SpecOf(const MemoryWay& way) const {
    Spec spec = spec_;
    spec.offloaded_layers = way.offloaded_layers;
    spec.recompute = way.recompute.recompute;
    spec.recompute_layers = way.recompute.layers;
    return spec;
  }

  // Program buffers do not depend on recompute or offload, so one program serves all strategies.
  MemoryWay With(int64_t layers) const {
    MemoryWay way;
    way.offloaded_layers = layers;
    const int64_t all = held_.layers.value_or(BlocksOf(model_));
    way.recompute = {held_.kind.value_or(Recompute::kFull), all};
    if (!held_.kind.has_value()) {
      way.recompute = CheapestRecompute(SpecOf(way), model_, layout_, program_, held_.layers)
                          .value_or(RecomputeChoice{Recompute::kFull, all});
    }
    way.peak_bytes = PlanMemory(SpecOf(way), model_, layout_, program_).peak_bytes;
    return way;
  }

  // A strategy that fits without recompute may be faster with recompute on offloaded layers, because less
  // data crosses the link.
  std::vector<MemoryWay> Both(const MemoryWay& way) const {
    if (held_.kind.has_value() || way.offloaded_layers == 0 || way.recompute.recompute != Recompute::kNone)
      return {way};
    MemoryWay less = way;
    less.recompute = {Recompute::kSelective, held_.layers.value_or(0)};
    less.peak_bytes = PlanMemory(SpecOf(less), model_, layout_, program_).peak_bytes;
    return {way, less};
  }

  double StepOf(const MemoryWay& way) const {
    const int64_t count = spec_.micro_batches_per_step();
    const double step = Simulated(way, std::min(count, kMicroBatches));
    if (count <= kMicroBatches) return step;
    return step + static_cast<double>(count - kMicroBatches) * (step - Simulated(way, kMicroBatches - 1));
  }

  double Simulated(const MemoryWay& way, int64_t micro_batches) const {
    Spec spec = SpecOf(way);
    spec.global_batch = spec.global_batch / spec.micro_batches_per_step() * micro_batches;
    const Program program = CompileProgram(spec, model_, layout_);
    return Simulate(spec, model_, layout_, program, DefaultProfile(spec.device), placement_).step_seconds;
  }

  const Spec spec_;
  const HeldRecompute held_;
  const Placement placement_;
  const ModelFacts model_;
  const Layout layout_;
  const Program program_;
};

}  // namespace

std::vector<MemoryWay> MemoryStrategies(const Spec& spec, const HeldRecompute& held, int64_t ranks_per_node) {
  return Ways(spec, held, ranks_per_node).Find();
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
