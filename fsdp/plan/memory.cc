#include "fsdp/plan/memory.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/limits.h"
#include "base/text.h"

namespace fsdpd {
namespace {

// Bytes of the arena that some reduce buffer uses; the rest holds gathered parameters only.
int64_t ReduceBytes(const Program& program) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.kind == BufferKind::kReduce) ranges.emplace_back(buffer.offset, buffer.offset + buffer.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t covered = 0;
  int64_t end = 0;
  for (const auto& [begin, stop] : ranges) {
    covered += std::max<int64_t>(0, stop - std::max(begin, end));
    end = std::max(end, stop);
  }
  return covered;
}

struct ComputePeak {
  int64_t activations = 0;
  int64_t workspace = 0;
  std::string unit;
};

// The unit at whose backward kept activations and its own workspace are largest together. One micro-batch is
// in flight at a time: its backward frees what its forward kept.
ComputePeak PeakOfCompute(const Spec& spec, const ModelFacts& model) {
  ComputePeak peak;
  int64_t kept = 0;  // By the units before.
  for (const UnitFacts& unit : model.units) {
    const int64_t activations = kept + unit.activation_bytes;
    if (activations + unit.workspace_bytes > peak.activations + peak.workspace) {
      peak = {activations, unit.workspace_bytes, unit.name};
    }
    kept += spec.recompute == Recompute::kFull ? unit.input_bytes : unit.activation_bytes;
  }
  return peak;
}

// For a change that is only tried. The third micro-batch repeats the second, so more of them need no more
// memory.
StepMemory MemoryOf(Spec spec) {
  const int64_t micro_batches = std::min<int64_t>(spec.micro_batches_per_step(), 3);
  spec.global_batch = micro_batches * spec.micro_batch * spec.world;
  const ModelFacts model =
      DescribeLlama(spec.model, spec.micro_batch, spec.data.sequence_length, spec.compute);
  const Layout layout = MakeLayout(model, spec.strategy == Strategy::kNoShard ? 1 : spec.world, spec.compute);
  return PlanMemory(spec, model, layout, CompileProgram(spec, layout));
}

// A change of the spec that would make it fit, and the peak it leads to.
struct Change {
  std::string text;
  int64_t peak_bytes = 0;
};

bool Divides(const Spec& spec) { return spec.global_batch % (spec.micro_batch * spec.world) == 0; }

std::optional<Change> TryRecompute(Spec spec) {
  if (spec.recompute == Recompute::kFull) return std::nullopt;
  spec.recompute = Recompute::kFull;
  return Change{"set fsdp.recompute: full", MemoryOf(spec).peak_bytes};
}

std::optional<Change> TryMicroBatch(Spec spec) {
  std::optional<Change> change;
  for (int64_t size = spec.micro_batch / 2; size >= 1; size /= 2) {
    spec.micro_batch = size;
    if (!Divides(spec)) continue;
    change = Change{absl::StrCat("set train.micro_batch: ", size), MemoryOf(spec).peak_bytes};
    if (change->peak_bytes <= spec.memory_budget_bytes) break;
  }
  return change;
}

// Twice the ranks, and twice again, with the batch as it is where it divides and scaled with the ranks where
// it does not.
std::optional<Change> TryWorld(Spec spec) {
  if (spec.strategy == Strategy::kNoShard) return std::nullopt;
  const Spec before = spec;
  std::optional<Change> change;
  for (int64_t factor = 2; before.world * factor <= kMaxWorld; factor *= 2) {
    spec.world = before.world * factor;
    spec.global_batch = before.global_batch;
    std::string text = absl::StrCat("use ", spec.world, " ranks instead of ", before.world);
    if (!Divides(spec)) {
      spec.global_batch = before.global_batch * factor;
      absl::StrAppend(&text, " with train.global_batch: ", spec.global_batch);
    }
    change = Change{text, MemoryOf(spec).peak_bytes};
    if (change->peak_bytes <= spec.memory_budget_bytes) break;
  }
  return change;
}

// The first change that fits, from the one that costs least; else recompute and more ranks together.
std::string SmallestFix(const Spec& spec) {
  const auto fits = [&](const std::optional<Change>& change) {
    return change.has_value() && change->peak_bytes <= spec.memory_budget_bytes;
  };
  const auto say = [](const Change& change) {
    return absl::StrCat(change.text, ": the peak becomes ", HumanBytes(change.peak_bytes), " per rank");
  };
  for (const auto& change : {TryMicroBatch(spec), TryRecompute(spec), TryWorld(spec)}) {
    if (fits(change)) return say(*change);
  }
  Spec full = spec;
  full.recompute = Recompute::kFull;
  std::optional<Change> both = TryWorld(full);
  if (fits(both)) return absl::StrCat("set fsdp.recompute: full and ", say(*both));
  if (spec.strategy == Strategy::kNoShard) {
    full.strategy = Strategy::kOptimGradsParams;
    full.prefetch_bytes = 0;
    const int64_t peak = MemoryOf(full).peak_bytes;
    if (peak <= spec.memory_budget_bytes) {
      return say({"set fsdp.strategy: optim_grads_params and fsdp.recompute: full", peak});
    }
  }
  return "no change of recompute, micro_batch or ranks makes it fit: use a smaller model or sequence_length, "
         "or devices with more memory";
}

}  // namespace

StepMemory PlanMemory(const Spec& spec, const ModelFacts& model, const Layout& layout,
                      const Program& program) {
  const bool sharded = spec.strategy != Strategy::kNoShard;
  const int64_t shard_bytes = layout.shard_elements() * BytesOf(DType::kFp32);
  const int64_t reduce_bytes = ReduceBytes(program);
  const ComputePeak compute = PeakOfCompute(spec, model);
  const std::string of = absl::StrCat("1/", layout.shards, " of the model in fp32");
  StepMemory memory;
  memory.components = {
      {"main_params", shard_bytes, of},
      {"optimizer", 2 * shard_bytes, absl::StrCat("AdamW's two moments, ", of)},
      {"gradients", sharded ? shard_bytes : reduce_bytes,
       sharded ? of : "whole in fp32, all-reduced in place"},
      {"gather_buffers", program.arena_bytes - reduce_bytes, "arena bytes that hold parameters only"},
      {"reduce_buffers", sharded ? reduce_bytes : 0,
       sharded ? "arena bytes that hold gradients on their way, or either" : "none: gradients are whole"},
      {"activations", compute.activations,
       absl::StrCat("estimate: kept for backward", spec.recompute == Recompute::kFull ? " (unit inputs)" : "",
                    ", at ", compute.unit)},
      {"workspace", compute.workspace,
       absl::StrCat("estimate: temporaries of ", compute.unit, "'s backward")},
  };
  for (const MemoryComponent& component : memory.components) memory.peak_bytes += component.bytes;
  return memory;
}

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
  fault.fix = SmallestFix(spec);
  return {fault};
}

}  // namespace fsdpd
