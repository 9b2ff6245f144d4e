// Rules of fsdp, resources, priority, restart and telemetry.
#include <absl/strings/str_cat.h>

#include "base/api/label_selector.h"
#include "base/limits.h"
#include "base/rank/trace_file.h"
#include "base/text.h"
#include "fsdp/plan/layout/layout.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxAttempts = 100;
constexpr int64_t kMaxPriority = 1000;
constexpr int64_t kMinHangSeconds = 5;
constexpr int64_t kMaxHangSeconds = 86400;

// Below this many parameters per rank, collectives are latency-bound: a GPU all-gather takes about 10 us at
// any size under 64 KiB.
constexpr int64_t kFewParametersPerRank = 16384;

// Upper bound of the whole model's gathered bytes (FP8 matrices take half of it). REQUIRES: model, resources
// and precision are valid.
int64_t GatheredBytes(const Facts& f) {
  LayoutOptions options;
  options.shards = f.world() / f.outer_size();
  options.types.gathered = f.compute();
  options.lora = f.job.train().has_lora();
  int64_t bytes = 0;
  for (const Bucket& bucket : MakeLayout(f.described_model(), options).buckets) {
    bytes += bucket.gathered_bytes();
  }
  return bytes;
}

// Safe for rules that run before fsdp.outer is checked.
bool ShardingIsKnown(const Facts& f) {
  return f.ModelIsKnown() && f.WorldIsKnown() && f.IsValid({"fsdp.outer"}) && f.world() % f.outer_size() == 0;
}

bool GathersEachPass(const Facts& f) {
  return f.strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS && !f.job.fsdp().keep_gathered();
}

bool ShardsOverOuter(const Facts& f) { return f.job.fsdp().outer().strategy() == v1::STRATEGY_OPTIM; }

bool IsComplete(const Facts& f) { return f.strategy() == v1::STRATEGY_NO_SHARD; }

const Rule kRules[] = {
    {"nodes_range", kError, "resources.nodes", "nodes must be positive and at most 16384",
     Between(1, kMaxWorld, "omit it (default: 1)")},
    {"ranks_per_node_range", kError, "resources.ranks_per_node",
     "ranks_per_node must be positive and at most 16384", Between(1, kMaxWorld, "omit it (default: 1)")},
    {"world_bounded", kError, "resources", "nodes x ranks_per_node must be at most 16384",
     [](const Facts& f) -> Findings {
       if (!f.IsValid({"resources.nodes", "resources.ranks_per_node"}) || f.world() <= kMaxWorld) return {};
       return {{absl::StrCat(f.job.resources().nodes(), " nodes x ", f.job.resources().ranks_per_node(),
                             " ranks are ", f.world(), " ranks; a job has at most ", kMaxWorld),
                "use fewer nodes or fewer ranks per node"}};
     }},
    {"device_known", kError, "resources.device", "device must be cpu or cuda",
     Known("write device: cpu or device: cuda")},
    {"memory_budget_positive", kError, "resources.memory_budget_bytes",
     "memory_budget_bytes must be positive",
     [](const Facts& f) -> Findings {
       const v1::Resources& resources = f.job.resources();
       if (!resources.has_memory_budget_bytes() || resources.memory_budget_bytes() >= 1) return {};
       return {{absl::StrCat("the budget is ", f.job.resources().memory_budget_bytes(), " bytes"),
                "write for example 70GiB, or leave it out to use the memory that nodes offer"}};
     }},
    {"node_selector_is_one", kError, "resources.node_selector",
     "node_selector must be a valid label selector",
     [](const Facts& f) -> Findings {
       const absl::Status parsed = ParseSelector(f.job.resources().node_selector()).status();
       if (parsed.ok()) return {};
       return {{absl::StrCat("invalid label selector: ", parsed.message()),
                "write comma-separated requirements such as gpu=h200, zone!=b, fast or !shared"}};
     }},
    {"strategy_known", kError, "fsdp.strategy",
     "strategy must be no_shard, optim, optim_grads or optim_grads_params",
     Known("write no_shard, optim, optim_grads or optim_grads_params")},
    {"prefetch_not_negative", kError, "fsdp.prefetch_bytes", "prefetch_bytes must not be negative",
     NotNegative(
         "write 0 to gather each unit only when it is needed, or omit it (default: the largest unit)")},
    {"prefetch_without_gathers", kAdjust, "fsdp.prefetch_bytes",
     "prefetch_bytes has no effect unless parameters are gathered per pass",
     [](const Facts& f) -> Findings {
       if (GathersEachPass(f) || f.job.fsdp().prefetch_bytes() <= 0) return {};
       return {{"parameters stay gathered for the whole step, so nothing is prefetched",
                "leave it out, or use strategy: optim_grads_params without keep_gathered", "",
                absl::StrCat(f.job.fsdp().prefetch_bytes()), "0"}};
     }},
    {"prefetch_above_model", kAdjust, "fsdp.prefetch_bytes",
     "prefetch_bytes above the size of the gathered model has no effect",
     [](const Facts& f) -> Findings {
       if (!GathersEachPass(f) || !f.job.fsdp().has_prefetch_bytes() || !ShardingIsKnown(f)) return {};
       const int64_t all = GatheredBytes(f);
       if (f.job.fsdp().prefetch_bytes() <= all) return {};
       const bool rounded = f.job.precision().compute() == v1::DTYPE_FP8;
       return {{absl::StrCat("the whole model is ", rounded ? "at most " : "", HumanBytes(all),
                             " when gathered; more can never be prefetched"),
                "omit it (default: the largest unit)", "", absl::StrCat(f.job.fsdp().prefetch_bytes()),
                absl::StrCat(all)}};
     }},
    {"recompute_known", kError, "fsdp.recompute", "recompute must be auto, none, selective or full",
     Known("write recompute: none, selective, full or auto")},
    {"recompute_layers_range", kError, "fsdp.recompute_layers", "recompute_layers must not be negative",
     NotNegative("omit it (default: all layers)")},
    {"recompute_layers_above_model", kAdjust, "fsdp.recompute_layers",
     "recompute_layers above the number of layers has no effect",
     [](const Facts& f) -> Findings {
       const int64_t layers = f.job.fsdp().recompute_layers();
       if (!f.ModelIsKnown() || layers <= f.layers()) return {};
       return {{absl::StrCat("the model has ", f.layers(), " layers"), "omit it (default: all layers)", "",
                absl::StrCat(layers), absl::StrCat(f.layers())}};
     }},
    {"recompute_layers_of_none", kWarn, "fsdp.recompute_layers",
     "recompute_layers has no effect with recompute: none",
     [](const Facts& f) -> Findings {
       const int64_t layers = f.job.fsdp().recompute_layers();
       if (f.job.fsdp().recompute() != v1::RECOMPUTE_NONE || layers <= 0) return {};
       return {{absl::StrCat("recompute_layers is ", layers,
                             " and has no effect, because fsdp.recompute is none"),
                "leave it out, or write recompute: full, selective or auto"}};
     }},
    {"keep_gathered_without_params", kAdjust, "fsdp.keep_gathered",
     "keep_gathered has no effect unless parameters are sharded",
     When{[](const Facts& f) {
            return f.job.fsdp().keep_gathered() && f.strategy() != v1::STRATEGY_OPTIM_GRADS_PARAMS;
          },
          "this strategy does not shard parameters", "leave it out", "true", "false"}},
    {"outer_size_divides", kError, "fsdp.outer.size", "the number of ranks must be a multiple of outer.size",
     [](const Facts& f) -> Findings {
       const int64_t size = f.job.fsdp().outer().size();
       if (size < 1)
         return {{absl::StrCat("size is ", size, " and must be 1 or more"), "omit it (default: 1)"}};
       if (size == 1 || !f.WorldIsKnown() || f.world() % size == 0) return {};
       return {{absl::StrCat(f.world(), " ranks do not split into ", size, " equal groups"),
                "choose a divisor of the number of ranks, usually the number of nodes"}};
     }},
    {"outer_without_shards", kError, "fsdp.outer.size", "fsdp.outer is not supported with strategy: no_shard",
     When{[](const Facts& f) { return f.outer_size() > 1 && IsComplete(f); },
          "with no_shard every rank already holds a full replica",
          "leave fsdp.outer out, or use a strategy that shards"}},
    {"outer_strategy_known", kError, "fsdp.outer.strategy", "outer.strategy must be no_shard or optim",
     When{[](const Facts& f) {
            const v1::Strategy strategy = f.job.fsdp().outer().strategy();
            return strategy != v1::STRATEGY_UNSPECIFIED && strategy != v1::STRATEGY_NO_SHARD &&
                   strategy != v1::STRATEGY_OPTIM;
          },
          "only no_shard and optim are supported over the outer axis (gradients and parameters are sharded "
          "within a replica)",
          "write strategy: no_shard (HSDP) or strategy: optim (HFSDP)"}},
    {"outer_optim_needs_params", kError, "fsdp.outer.strategy",
     "outer.strategy: optim requires strategy: optim_grads_params",
     When{[](const Facts& f) {
            return ShardsOverOuter(f) && f.outer_size() > 1 &&
                   f.strategy() != v1::STRATEGY_OPTIM_GRADS_PARAMS;
          },
          "optimizer state can be sharded over replicas only with fsdp.strategy: optim_grads_params",
          "write fsdp.strategy: optim_grads_params, or outer: {strategy: no_shard}"}},
    {"outer_strategy_without_axis", kAdjust, "fsdp.outer.strategy",
     "outer.strategy has no effect without an outer axis",
     When{[](const Facts& f) { return ShardsOverOuter(f) && f.outer_size() == 1; },
          "the outer axis has size 1: there are no replicas to shard over", "set outer.size, or leave it out",
          "optim", "no_shard"}},
    {"max_attempts_range", kError, "restart.max_attempts", "max_attempts must be between 1 and 100",
     Between(1, kMaxAttempts, "omit it (default: 1, or 3 if the job writes periodic checkpoints)")},
    {"hang_seconds_range", kError, "restart.hang_seconds",
     "hang_seconds must be 0 (off) or between 5 and 86400",
     [](const Facts& f) -> Findings {
       const int64_t seconds = f.job.restart().hang_seconds();
       if (seconds == 0 || (seconds >= kMinHangSeconds && seconds <= kMaxHangSeconds)) return {};
       return {
           {absl::StrCat("hang_seconds is ", seconds, " (agents check once per second, and a loaded machine ",
                         "can pause for seconds)"),
            absl::StrCat("write between ", kMinHangSeconds, " and ", kMaxHangSeconds,
                         ", 0 to disable hang detection, or omit it (default: 30)")}};
     }},
    {"priority_range", kError, "priority", "priority must be between -1000 and 1000",
     Between(-kMaxPriority, kMaxPriority,
             "write a number in this range; higher runs first, the default is 0")},
    {"restart_without_checkpoint", kWarn, "restart.max_attempts",
     "max_attempts above 1 without periodic checkpoints restarts from step 1",
     When{[](const Facts& f) {
            return f.job.restart().max_attempts() > 1 && f.IsValid({"restart", "checkpoint"}) &&
                   !SavesBetween(f.job.checkpoint());
          },
          "without periodic checkpoints each attempt restarts from step 1",
          "write checkpoint: {dir: DIR, every_steps: N}; ignore this for short jobs"}},
    {"trace_steps_count", kError, "telemetry.trace_steps", "trace_steps must have at most 16 entries",
     [](const Facts& f) -> Findings {
       const int steps = f.job.telemetry().trace_steps_size();
       if (steps <= kMaxTracedSteps) return {};
       return {{absl::StrCat(steps, " steps are listed, and at most ", kMaxTracedSteps,
                             " are supported: every rank writes a file per step"),
                "list fewer; use `fsdpctl trace JOB` to trace more while the job runs"}};
     }},
    {"trace_steps_range", kError, "telemetry.trace_steps", "trace_steps must be between 1 and train.steps",
     [](const Facts& f) -> Findings {
       const int64_t steps = f.steps();
       Findings findings;
       if (steps < 1 || !f.IsValid({"train.steps"})) return findings;
       for (int i = 0; i < f.job.telemetry().trace_steps_size(); ++i) {
         const int64_t step = f.job.telemetry().trace_steps(i);
         if (step >= 1 && step <= steps) continue;
         findings.push_back({absl::StrCat("the job has no step ", step),
                             absl::StrCat("list steps from 1 to train.steps, which is ", steps),
                             absl::StrCat("telemetry.trace_steps[", i, "]")});
       }
       return findings;
     }},
    {"trace_steps_ascend", kError, "telemetry.trace_steps", "trace_steps must be in ascending order",
     [](const Facts& f) -> Findings {
       const auto& steps = f.job.telemetry().trace_steps();
       for (int i = 1; i < steps.size(); ++i) {
         if (steps[i] > steps[i - 1]) continue;
         return {{absl::StrCat("step ", steps[i], " comes after ", steps[i - 1]),
                  "list each step once, in order", absl::StrCat("telemetry.trace_steps[", i, "]")}};
       }
       return {};
     }},
    {"few_parameters_per_rank", kWarn, "resources",
     "fewer than 16384 parameters per rank make collectives latency-bound",
     [](const Facts& f) -> Findings {
       if (IsComplete(f) || !ShardingIsKnown(f) || f.world() == 1) return {};
       const int64_t parameters = DescribeModel(f.model(), 1, 1, DType::kFp32).elements();
       if (parameters / f.world() >= kFewParametersPerRank) return {};
       return {{absl::StrCat(parameters, " parameters over ", f.world(), " ranks are ",
                             parameters / f.world(), " each; collectives will be latency-bound"),
                "use fewer ranks, or strategy: no_shard"}};
     }},
};

}  // namespace

absl::Span<const Rule> RuntimeRules() { return kRules; }

}  // namespace fsdpd
