#include "fsdp/plan/budget.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/text.h"

namespace fsdpd {
namespace {

// A spec that was changed, and how somebody would write the change.
struct Option {
  Spec spec;
  std::string text;
};

// Options of one kind, the mildest first; empty when there is nothing to change.
using Options = std::vector<Option>;
using Kind = Options (*)(const Spec&);

bool Divides(const Spec& spec) { return spec.global_batch % (spec.micro_batch * spec.world) == 0; }

// The third micro-batch repeats the second, so more of them need no more memory.
Spec Shortened(Spec spec) {
  spec.global_batch = std::min<int64_t>(spec.micro_batches_per_step(), 3) * spec.micro_batch * spec.world;
  return spec;
}

int64_t PeakOf(const Spec& tried) {
  const Spec spec = Shortened(tried);
  const ModelFacts model = DescribeSpec(spec);
  const Layout layout = MakeLayout(model, LayoutOptionsOf(spec));
  return PlanMemory(spec, model, layout, CompileProgram(spec, model, layout)).peak_bytes;
}

bool Fits(const Spec& spec) { return PeakOf(spec) <= spec.memory_budget_bytes; }

Options SmallerMicroBatch(const Spec& spec) {
  Options options;
  for (int64_t size = spec.micro_batch / 2; size >= 1; size /= 2) {
    Option option{spec, absl::StrCat("train.micro_batch: ", size)};
    option.spec.micro_batch = size;
    if (Divides(option.spec)) options.push_back(std::move(option));
  }
  return options;
}

Option WithRecompute(const Spec& spec, RecomputeChoice choice, bool all) {
  const char* kind = choice.recompute == Recompute::kFull ? "full" : "selective";
  Option option{spec, absl::StrCat("fsdp.recompute: ", kind)};
  if (!all) absl::StrAppend(&option.text, " with fsdp.recompute_layers: ", choice.layers);
  option.spec.recompute = choice.recompute;
  option.spec.recompute_layers = choice.layers;
  return option;
}

Options MoreRecompute(const Spec& spec) {
  const Spec cut = Shortened(spec);
  const ModelFacts model = DescribeSpec(cut);
  const Layout layout = MakeLayout(model, LayoutOptionsOf(cut));
  const int64_t blocks = BlocksOf(model);
  if (spec.recompute == Recompute::kFull && spec.recompute_layers >= blocks) return {};
  const Option everything = WithRecompute(spec, {Recompute::kFull, blocks}, /*all=*/true);
  const auto choice = CheapestRecompute(cut, model, layout, CompileProgram(cut, model, layout));
  if (!choice.has_value() || choice->recompute == Recompute::kNone) return {everything};
  return {WithRecompute(spec, *choice, choice->layers == blocks), everything};
}

Options GatherEachPass(const Spec& spec) {
  if (!spec.shards_params() || !spec.keep_gathered) return {};
  Option option{spec, "fsdp.keep_gathered: false"};
  option.spec.keep_gathered = false;
  const Layout layout = MakeLayout(DescribeSpec(spec), LayoutOptionsOf(spec));
  option.spec.prefetch_bytes = FindLargestUnit(layout, spec.compute).bytes;  // What auto becomes.
  return {option};
}

Options MoreSharding(const Spec& spec) {
  Options options;
  for (const Strategy strategy : {Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    if (strategy <= spec.strategy) continue;
    Option option{spec, absl::StrCat("fsdp.strategy: ", NameOf(strategy))};
    option.spec.strategy = strategy;
    if (strategy == Strategy::kOptimGradsParams) {
      const Layout layout = MakeLayout(DescribeSpec(option.spec), LayoutOptionsOf(option.spec));
      option.spec.prefetch_bytes = FindLargestUnit(layout, spec.compute).bytes;  // What auto becomes.
    }
    options.push_back(std::move(option));
  }
  return options;
}

// Replicas that share the optimizer's state, then no replicas at all.
Options FewerReplicas(const Spec& spec) {
  if (spec.outer_size == 1) return {};
  Options options;
  if (spec.outer_strategy == Strategy::kNoShard && spec.shards_params()) {
    options.push_back({spec, "fsdp.outer.strategy: optim"});
    options.back().spec.outer_strategy = Strategy::kOptim;
  }
  options.push_back({spec, "fsdp.outer.size: 1"});
  options.back().spec.outer_size = 1;
  options.back().spec.outer_strategy = Strategy::kNoShard;
  return options;
}

Options NarrowMoments(const Spec& spec) {
  if (spec.optimizer.moments() == 0 || spec.moments != DType::kFp32) return {};
  Option option{spec, "precision.moments: bf16"};
  option.spec.moments = DType::kBf16;
  return {option};
}

// Twice the ranks, and twice again, with the batch as it is where it divides and scaled with the ranks where
// it does not.
Options MoreRanks(const Spec& spec) {
  Options options;
  if (spec.strategy == Strategy::kNoShard) return options;  // Nothing is shared among them.
  for (int64_t factor = 2; spec.world * factor <= kMaxWorld; factor *= 2) {
    Option option{spec, absl::StrCat(spec.world * factor, " ranks instead of ", spec.world)};
    option.spec.world = spec.world * factor;
    if (!Divides(option.spec)) {
      option.spec.global_batch = spec.global_batch * factor;
      absl::StrAppend(&option.text, " with train.global_batch: ", option.spec.global_batch);
    }
    options.push_back(std::move(option));
  }
  return options;
}

constexpr Kind kKinds[] = {SmallerMicroBatch, MoreRecompute, GatherEachPass, MoreSharding,
                           FewerReplicas,     NarrowMoments, MoreRanks};

struct Fix {
  Spec spec;
  std::vector<std::string> texts;
};

// The strongest option of each kind but the last, of which the mildest that fits; empty when none does.
std::optional<Fix> Together(const Spec& spec, const std::vector<Kind>& kinds) {
  Fix fix{spec, {}};
  for (size_t i = 0; i < kinds.size(); ++i) {
    Options options = kinds[i](fix.spec);
    if (options.empty()) continue;
    auto chosen = std::prev(options.end());
    if (i + 1 == kinds.size()) {
      chosen = std::find_if(options.begin(), options.end(), [](const Option& o) { return Fits(o.spec); });
      if (chosen == options.end()) return std::nullopt;
    }
    fix.spec = std::move(chosen->spec);
    fix.texts.push_back(std::move(chosen->text));
  }
  if (!Fits(fix.spec)) return std::nullopt;
  return fix;
}

std::optional<Fix> SmallestFix(const Spec& spec) {
  for (const Kind kind : kKinds) {
    if (std::optional<Fix> fix = Together(spec, {kind}); fix.has_value()) return fix;
  }
  std::vector<Kind> kinds;
  std::optional<Fix> fix;
  for (const Kind kind : kKinds) {
    kinds.push_back(kind);
    if (fix = Together(spec, kinds); fix.has_value()) break;
  }
  if (!fix.has_value()) return fix;
  // Without what turned out not to be needed; the last change must not grow for it.
  for (size_t i = 0; i + 1 < kinds.size();) {
    std::vector<Kind> fewer = kinds;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    std::optional<Fix> smaller = Together(spec, fewer);
    if (smaller.has_value() && smaller->texts.back() == fix->texts.back()) {
      kinds = std::move(fewer);
      fix = std::move(smaller);
    } else {
      ++i;
    }
  }
  return fix;
}

std::string Advice(const Spec& spec) {
  const std::optional<Fix> fix = SmallestFix(spec);
  if (!fix.has_value()) {
    return "no change of recompute, micro_batch, sharding or ranks makes it fit: use a smaller model or "
           "sequence_length, or devices with more memory";
  }
  return absl::StrCat("use ", absl::StrJoin(fix->texts, " and "), ": the peak becomes ",
                      HumanBytes(PeakOf(fix->spec)), " per rank");
}

}  // namespace

Violations CheckBudget(const Spec& spec, const StepMemory& memory) {
  if (spec.memory_budget_bytes <= 0 || memory.peak_bytes <= spec.memory_budget_bytes) return {};
  const MemoryComponent* overflows = &memory.components.back();
  int64_t sum = 0;
  for (const MemoryComponent& component : memory.components) {
    sum += component.bytes;
    if (sum > spec.memory_budget_bytes) {
      overflows = &component;
      break;
    }
  }
  const MemoryComponent& largest =
      *std::max_element(memory.components.begin(), memory.components.end(),
                        [](const MemoryComponent& a, const MemoryComponent& b) { return a.bytes < b.bytes; });
  Violation fault;
  fault.rule = "memory_over_budget";
  fault.field = "resources.memory_budget_bytes";
  fault.reason =
      absl::StrCat("a step needs ", HumanBytes(memory.peak_bytes), " per rank and the budget is ",
                   HumanBytes(spec.memory_budget_bytes), ": over by ",
                   HumanBytes(memory.peak_bytes - spec.memory_budget_bytes), ". Adding up, ", overflows->name,
                   " (", HumanBytes(overflows->bytes), ") is what no longer fits; the largest part is ",
                   largest.name, " (", HumanBytes(largest.bytes), ")");
  fault.fix = Advice(spec);
  return {fault};
}

}  // namespace fsdpd
