// Rules of parallel.pipeline, parallel.pipeline_chunks, parallel.pipeline_schedule, parallel.stage_units.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/limits.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

bool HasStages(const Facts& f) { return f.IsValid({"parallel.pipeline"}) && f.job.parallel().pipeline() > 1; }

int64_t Chunks(const Facts& f) {
  return f.job.parallel().has_pipeline_chunks() ? f.job.parallel().pipeline_chunks() : 1;
}

// Models that can be partitioned into stages.
bool HasUnits(const Facts& f) {
  return f.ModelIsKnown() && (f.llama().has_value() || f.job.model().has_package());
}

// Embedding and head are units in addition to the layers.
int64_t UnitsOf(const Facts& f) { return f.layers() + 2; }

Findings DividesRanks(const Facts& f) {
  if (!HasStages(f) || !f.WorldIsKnown() || !f.IsValid({"fsdp.outer"})) return {};
  const int64_t stages = f.job.parallel().pipeline(), outer = f.outer_size();
  if (f.world() % (stages * outer) == 0) return {};
  const std::string of_replica = outer > 1 ? absl::StrCat(" in ", outer, " replicas") : "";
  return {{absl::StrCat(f.world(), " ranks", of_replica, " do not split into ", stages, " equal stages"),
           absl::StrCat("choose a divisor of ", f.world() / outer)}};
}

// The largest number of stages with at least one unit each that divides the ranks, if they are known.
std::string MostStages(const Facts& f) {
  int64_t most = UnitsOf(f);
  if (!f.WorldIsKnown() || !f.IsValid({"fsdp.outer"}))
    return absl::StrCat("write pipeline: ", most, " or less");
  while (most > 1 && f.world() % (most * f.outer_size()) != 0) --most;
  return most > 1 ? absl::StrCat("write pipeline: ", most) : "leave parallel.pipeline out";
}

Findings SumsUp(const Facts& f) {
  const auto& given = f.job.parallel().stage_units();
  if (given.empty() || !f.IsValid({"parallel.pipeline", "parallel.pipeline_chunks"})) return {};
  const int64_t stages = f.job.parallel().pipeline(), chunks = Chunks(f);
  if (stages == 1) {
    return {{"there is only one stage", "leave it out, or write pipeline"}};
  }
  if (given.size() != stages * chunks && chunks > 1) {
    return {{absl::StrCat("it lists ", given.size(), " entries, and ", stages, " stages of ", chunks,
                          " chunks need ", stages * chunks),
             "write one number for each chunk, or leave it out"}};
  }
  if (given.size() != stages * chunks) {
    return {{absl::StrCat("it lists ", given.size(), " entries, and parallel.pipeline is ", stages),
             "write one number for each stage, or leave it out"}};
  }
  if (!std::all_of(given.begin(), given.end(), [](int64_t units) { return units > 0 && units <= kMaxWorld; }))
    return {
        {absl::StrCat("each entry must be between 1 and ", kMaxWorld), "omit it for a balanced partition"}};
  if (!f.ModelIsKnown()) return {};
  const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
  if (sum == UnitsOf(f)) return {};
  return {{absl::StrCat("it sums to ", sum, ", and the model has ", UnitsOf(f),
                        " units: embedding, layers and head"),
           "omit it for a balanced partition"}};
}

// By unit: whether it has trainable parameters.
std::vector<bool> TrainedUnits(const Facts& f) {
  std::vector<bool> trained;
  const ModelFacts model = f.described_model();
  for (const UnitFacts& unit : model.units) {
    const auto is_frozen = [&](const ParamFacts& param) {
      const std::string name = FullName(unit, param);
      const auto& patterns = f.job.train().frozen();
      return param.fixed || std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
               return MatchesPattern(name, pattern);
             });
    };
    const bool all_frozen = std::all_of(unit.params.begin(), unit.params.end(), is_frozen);
    // A borrower trains the lender's parameters; in another stage, through its replica.
    trained.push_back(!all_frozen || (unit.borrows >= 0 && trained[unit.borrows]));
  }
  return trained;
}

// A stage's next step starts after its updates, so every stage needs some. With automatic partitioning, any
// unit may become its own stage.
Findings TrainsEverywhere(const Facts& f) {
  if (!HasStages(f) || !HasUnits(f) || !f.IsValid({"parallel.stage_units"})) return {};
  const v1::Train& train = f.job.train();
  if (train.frozen().empty() && !train.has_lora() && !f.job.model().has_package()) return {};
  const std::vector<bool> trained = TrainedUnits(f);
  std::vector<int64_t> runs(f.job.parallel().stage_units().begin(), f.job.parallel().stage_units().end());
  const auto stages = runs.empty() ? trained.size() : static_cast<size_t>(f.job.parallel().pipeline());
  if (runs.empty()) runs.assign(trained.size(), 1);
  std::vector<bool> trains(stages, false);
  auto unit = trained.begin();
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto end = unit + runs[r];
    trains[r % stages] = trains[r % stages] || std::find(unit, end, true) != end;
    unit = end;
  }
  if (std::find(trains.begin(), trains.end(), false) == trains.end()) return {};
  if (train.has_lora()) {
    const auto units = static_cast<int64_t>(trained.size()), split = f.job.parallel().pipeline();
    std::vector<int64_t> even(split, units / split);
    for (int64_t i = 0; i < units % split; ++i) ++even[i];
    return {{"embedding and head have no adapters, and each stage needs some",
             absl::StrCat(
                 "write parallel.stage_units with layers that have adapters in each stage, for example [",
                 absl::StrJoin(even, ", "), "]"),
             "train.lora"}};
  }
  if (f.job.parallel().stage_units().empty())
    return {{"a unit is completely frozen and could become a stage without trainable parameters",
             "write parallel.stage_units so that each stage has trainable parameters"}};
  return {{"all units of a stage are frozen; each stage needs trainable parameters",
           "write parallel.stage_units so that each stage has trainable parameters, or freeze fewer"}};
}

Findings HaveMicroBatches(const Facts& f) {
  if (!HasStages(f) || !f.WorldIsKnown() || Chunks(f) == 1) return {};
  if (!f.IsValid({"parallel", "train.micro_batch", "train.global_batch"})) return {};
  const int64_t at_a_time = f.job.train().micro_batch() * f.data_ranks(),
                stages = f.job.parallel().pipeline();
  const int64_t count = f.global_batch() / at_a_time;
  if (f.global_batch() % at_a_time != 0 || count % stages == 0) return {};
  return {{absl::StrCat("a step has ", count, " micro-batches of ", at_a_time,
                        " samples; interleaved stages need a multiple of ", stages),
           absl::StrCat("write global_batch: ", (count / stages + 1) * stages * at_a_time,
                        ", or leave parallel.pipeline_chunks out")}};
}

bool IsZeroBubble(const Facts& f) {
  return f.job.parallel().pipeline_schedule() == v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
}

const Rule kRules[] = {
    {"parallel_pipeline_range", kError, "parallel.pipeline",
     "parallel.pipeline must be positive and at most 16384", Between(1, kMaxWorld, "omit it (default: 1)")},
    {"parallel_pipeline_divides_ranks", kError, "parallel.pipeline",
     "the number of ranks must be a multiple of parallel.pipeline x fsdp.outer.size", DividesRanks},
    {"parallel_pipeline_needs_llama", kError, "parallel.pipeline",
     "parallel.pipeline supports only exported models and those of the Llama family",
     When{[](const Facts& f) { return HasStages(f) && f.HasOtherFamily() && !HasUnits(f); },
          "pipeline parallelism does not support this model",
          "leave parallel.pipeline out; FSDP shards the parameters anyway"}},
    {"parallel_pipeline_has_units", kError, "parallel.pipeline",
     "each pipeline stage needs at least one unit",
     [](const Facts& f) -> Findings {
       if (!HasStages(f) || !HasUnits(f) || f.job.parallel().pipeline() <= UnitsOf(f)) return {};
       return {
           {absl::StrCat("the model has ", UnitsOf(f), " units: embedding, layers and head"), MostStages(f)}};
     }},
    {"parallel_pipeline_chunks_range", kError, "parallel.pipeline_chunks",
     "parallel.pipeline_chunks must be positive and at most 16384, and 1 without stages",
     [](const Facts& f) -> Findings {
       const int64_t chunks = Chunks(f);
       if (chunks == 1 || !f.IsValid({"parallel.pipeline"})) return {};
       if (chunks > 1 && f.job.parallel().pipeline() == 1)
         return {{"pipeline_chunks needs parallel.pipeline above 1", "leave it out, or write pipeline"}};
       return CheckRange(chunks, 1, kMaxWorld, "pipeline_chunks", "omit it (default: 1)");
     }},
    {"parallel_pipeline_chunks_on_cpu", kError, "parallel.pipeline_chunks",
     "parallel.pipeline_chunks is supported only on CPU ranks",
     When{[](const Facts& f) {
            return HasStages(f) && Chunks(f) != 1 && f.IsValid({"resources.device"}) &&
                   f.job.resources().device() == v1::DEVICE_CUDA;
          },
          "interleaved stages can deadlock on CUDA, whose lazy kernel loading waits for all queued work",
          "leave parallel.pipeline_chunks out"}},
    {"parallel_pipeline_chunks_have_units", kError, "parallel.pipeline_chunks",
     "each pipeline chunk needs at least one unit",
     [](const Facts& f) -> Findings {
       if (!HasStages(f) || !f.IsValid({"parallel.pipeline_chunks"}) || !HasUnits(f)) return {};
       const int64_t most = UnitsOf(f) / f.job.parallel().pipeline();
       if (most == 0 || Chunks(f) <= most) return {};
       return {{absl::StrCat("the model has ", UnitsOf(f), " units (embedding, layers and head) for ",
                             f.job.parallel().pipeline(), " stages of ", Chunks(f), " chunks"),
                most == 1 ? "leave pipeline_chunks out"
                          : absl::StrCat("write pipeline_chunks: ", most, " or less")}};
     }},
    {"parallel_pipeline_chunks_micro_batches", kError, "train.global_batch",
     "with pipeline_chunks, micro-batches per step must be a multiple of parallel.pipeline",
     HaveMicroBatches},
    {"parallel_pipeline_schedule_known", kError, "parallel.pipeline_schedule",
     "pipeline_schedule must be 1f1b or zero_bubble", Known("write pipeline_schedule: 1f1b or zero_bubble")},
    {"parallel_zero_bubble_has_stages", kError, "parallel.pipeline_schedule",
     "zero_bubble needs parallel.pipeline above 1 and is not supported with pipeline_chunks",
     [](const Facts& f) -> Findings {
       if (!IsZeroBubble(f) || !f.IsValid({"parallel.pipeline", "parallel.pipeline_chunks"})) return {};
       if (f.job.parallel().pipeline() == 1)
         return {{"there is only one stage, so there is no bubble", "leave it out, or write pipeline"}};
       if (Chunks(f) == 1) return {};
       return {{absl::StrCat("stages have ", Chunks(f), " chunks each (interleaved 1F1B)"),
                "leave out one of pipeline_schedule and pipeline_chunks"}};
     }},
    {"parallel_zero_bubble_whole_gradients", kError, "parallel.pipeline_schedule",
     "zero_bubble is not supported with sharded gradients",
     When{[](const Facts& f) {
            // The next unit's backward reuses the buffer that deferred weight gradients would occupy.
            return HasStages(f) && IsZeroBubble(f) && f.IsValid({"fsdp.strategy"}) && f.shards_grads();
          },
          "deferred weight gradients need whole gradient buffers, which sharded gradients do not have",
          "write fsdp.strategy: optim, or pipeline_schedule: 1f1b"}},
    {"parallel_stage_units_sum", kError, "parallel.stage_units",
     "stage_units needs one positive number per stage or chunk, and they must sum to the model's units",
     SumsUp},
    {"parallel_pipeline_trains", kError, "train.frozen", "each pipeline stage needs trainable parameters",
     TrainsEverywhere},
};

}  // namespace

absl::Span<const Rule> PipelineRules() { return kRules; }

}  // namespace fsdpd
