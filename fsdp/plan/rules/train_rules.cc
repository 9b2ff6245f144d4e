// Rules of train and schedule.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxMicroBatch = 1 << 20;
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 31;

// Maximum micro-batches x units: a program has six instructions for each, and a Plan message must stay below
// kMaxRpcBytes.
constexpr int64_t kMaxUnitRuns = 32768;

// The parameters common to all schedule shapes, and the field that each error belongs to.
struct Shape {
  const char* name;
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0;

  std::string Field(const char* field) const { return absl::StrCat("schedule.", name, ".", field); }
};

Shape ShapeOf(const v1::Schedule& schedule) {
  switch (schedule.shape_case()) {
    case v1::Schedule::kCosine:
      return {"cosine", schedule.cosine().warmup_steps(), schedule.cosine().min_lr_ratio()};
    case v1::Schedule::kLinear:
      return {"linear", schedule.linear().warmup_steps(), schedule.linear().min_lr_ratio()};
    case v1::Schedule::kWsd:
      return {"wsd", schedule.wsd().warmup_steps(), schedule.wsd().min_lr_ratio()};
    default:
      return {"constant", schedule.constant().warmup_steps(), 0};
  }
}

Findings ChecksSteps(const Facts& f) {
  const char* const fix = "write how many optimizer steps to take, for example steps: 1000, or epochs";
  const v1::Train& train = f.job.train();
  if (train.has_steps()) return CheckRange(train.steps(), 1, kMaxSteps, "steps", fix);
  if (train.has_epochs()) return {};
  return Missing("steps", fix);
}

// A pattern that matches no parameter is a typo.
Findings ChecksFrozen(const Facts& f) {
  if (f.job.train().frozen().empty() || !f.ModelIsKnown()) return {};
  if (f.job.train().has_lora()) return {};  // Rule lora_without_frozen.
  Findings findings;
  const std::vector<std::string> names = f.param_names();
  std::vector<bool> frozen(names.size());
  for (int i = 0; i < f.job.train().frozen_size(); ++i) {
    const std::string& pattern = f.job.train().frozen(i);
    bool found = false;
    for (size_t n = 0; n < names.size(); ++n) {
      if (!MatchesPattern(names[n], pattern)) continue;
      found = frozen[n] = true;
    }
    if (found) continue;
    findings.push_back(
        {absl::StrCat("'", pattern, "' matches no parameter; examples of names: ", names.front(), " and ",
                      names[names.size() / 2]),
         "write a full name or a pattern with *, e.g. layer.0.*", absl::StrCat("train.frozen[", i, "]")});
  }
  if (findings.empty() && std::count(frozen.begin(), frozen.end(), false) == 0) {
    findings.push_back({"all parameters are frozen, so there is nothing to train", "freeze fewer"});
  }
  return findings;
}

const Rule kRules[] = {
    {"steps_range", kError, "train.steps", "steps must be positive and at most 10^9, unless epochs is set",
     ChecksSteps},
    {"epochs_positive", kError, "train.epochs", "epochs must be above 0",
     Positive("write for example epochs: 3, or steps")},
    {"epochs_or_steps", kError, "train.epochs", "epochs and steps are not supported together",
     When{[](const Facts& f) { return f.job.train().has_epochs() && f.job.train().has_steps(); },
          "the number of steps follows from epochs", "write one of the two"}},
    {"epochs_of_one_file", kWarn, "train.epochs", "epochs over several files do not read each file once",
     When{[](const Facts& f) { return f.job.train().has_epochs() && f.job.data().tokens_size() > 1; },
          "files are mixed by weight, so large files may be read in part and small ones several times",
          "merge the files with fsdpctl data pack, or set weights in proportion to their samples"}},
    {"epochs_need_files", kError, "train.epochs", "epochs requires data.tokens",
     When{[](const Facts& f) { return f.job.train().has_epochs() && f.job.data().has_synthetic(); },
          "random tokens have no end", "write steps instead"}},
    {"micro_batch_range", kError, "train.micro_batch", "micro_batch must be positive and at most 2^20",
     Between(1, kMaxMicroBatch, "omit it (default: 1)")},
    {"micro_batch_tokens", kError, "train.micro_batch",
     "micro_batch x sequence_length must be at most 2^24 tokens",
     [](const Facts& f) -> Findings {
       if (!f.IsValid({"train.micro_batch", "data.sequence_length", "parallel"})) return {};
       const int64_t context = f.job.parallel().context();
       const int64_t each = std::max<int64_t>(1, f.job.data().sequence_length() / context);
       const int64_t tokens = f.job.train().micro_batch() * each;
       if (tokens <= kMaxMicroBatchTokens) return {};
       return {{absl::StrCat("a micro-batch has ", tokens, " tokens per rank; at most ", kMaxMicroBatchTokens,
                             " are allowed"),
                absl::StrCat("write micro_batch: ", std::max<int64_t>(1, kMaxMicroBatchTokens / each),
                             " or less; gradient accumulation keeps global_batch")}};
     }},
    {"global_batch_range", kError, "train.global_batch", "global_batch must be positive and at most 2^31",
     Between(1, kMaxGlobalBatch, "omit it (default: micro_batch x ranks)")},
    {"global_batch_divisible", kError, "train.global_batch",
     "global_batch must be a multiple of micro_batch x ranks",
     [](const Facts& f) -> Findings {
       if (!f.WorldIsKnown() || !f.IsValid({"train.micro_batch", "train.global_batch", "parallel"}))
         return {};
       const int64_t ranks = f.data_ranks();
       const int64_t unit = f.job.train().micro_batch() * ranks;
       const int64_t batch = f.global_batch();
       if (batch % unit == 0) return {};
       const int64_t below = batch / unit * unit;
       const char* groups = ranks == f.world() ? " ranks x " : " groups of ranks x ";
       return {{absl::StrCat("every rank must run the same number of micro-batches: ", batch,
                             " samples do not split into ", ranks, groups, f.job.train().micro_batch(),
                             " samples (", unit, " at a time)"),
                below == 0 ? absl::StrCat("write global_batch: ", unit, ", or use fewer ranks")
                           : absl::StrCat("write global_batch: ", below, " or ", below + unit)}};
     }},
    {"accumulation_bounded", kError, "train.global_batch",
     "micro-batches per step x units must be at most 32768",
     [](const Facts& f) -> Findings {
       if (!f.WorldIsKnown() || !f.IsValid({"train", "parallel"}) || !f.ModelIsKnown()) return {};
       const int64_t count = f.global_batch() / (f.job.train().micro_batch() * f.data_ranks());
       const int64_t units = f.layers() + 2;
       if (count * units <= kMaxUnitRuns) return {};
       return {{absl::StrCat("a step of ", count, " micro-batches over ", units, " units is a program of ",
                             6 * count * units, " instructions; at most ", 6 * kMaxUnitRuns, " are allowed"),
                absl::StrCat("use a larger micro_batch or more ranks, so that a step has at most ",
                             kMaxUnitRuns / units, " micro-batches")}};
     }},
    {"seed_not_negative", kError, "train.seed", "seed must not be negative",
     Limits{0, kUnlimited, "write 0 or a positive number, or omit it (default: 1)", false, "the seed"}},
    {"initial_std_positive", kError, "train.initial", "initial deviations must be above 0",
     [](const Facts& f) -> Findings {
       const v1::InitialValues& initial = f.job.train().initial();
       Findings findings;
       const auto check = [&](bool written, double value, const char* field) {
         if (!written || (value > 0 && std::isfinite(value))) return;
         findings.push_back({absl::StrCat(field, " is ", value, ": matrices initialized to 0 do not train"),
                             "write a number above 0, or omit it (default: 0.02)",
                             absl::StrCat("train.initial.", field)});
       };
       check(initial.has_std(), initial.std(), "std");
       check(initial.has_embedding_std(), initial.embedding_std(), "embedding_std");
       return findings;
     }},
    {"initial_not_for_plugins", kError, "train.initial",
     "train.initial is not supported with plug-in models and packages",
     When{[](const Facts& f) {
            return (f.job.model().has_plugin() || f.job.model().has_package()) && f.job.train().has_initial();
          },
          "the model initializes its own parameters",
          "leave it out; a plug-in can read such values from model.plugin.args"}},
    {"evaluation_interval_positive", kError, "train.evaluation.every_steps", "every_steps must be positive",
     Required(kUnlimited, "write for example every_steps: 100, or leave evaluation out")},
    {"evaluation_samples_positive", kError, "train.evaluation.samples", "samples must be positive",
     Positive("omit it to use all of the validation data")},
    {"evaluation_without_data", kError, "train.evaluation", "train.evaluation requires data.validation",
     When{[](const Facts& f) {
            return f.job.train().has_evaluation() && f.job.data().validation().empty() &&
                   f.IsValid({"data.validation"});
          },
          "there is no validation data", "write data: {validation: [{path: FILE}]}, or leave it out"}},
    {"frozen_matches", kError, "train.frozen",
     "each pattern must match a parameter, and some parameter must be trainable", ChecksFrozen},
    {"warmup_not_negative", kError, "schedule", "warmup_steps must not be negative",
     [](const Facts& f) -> Findings {
       const Shape shape = ShapeOf(f.job.schedule());
       if (shape.warmup_steps >= 0) return {};
       return {{absl::StrCat("warmup_steps is ", shape.warmup_steps, " and cannot be negative"),
                "omit it for no warm-up", shape.Field("warmup_steps")}};
     }},
    {"warmup_below_steps", kError, "schedule", "warmup_steps must be below train.steps",
     [](const Facts& f) -> Findings {
       const Shape shape = ShapeOf(f.job.schedule());
       if (!f.IsValid({"train.steps"}) || shape.warmup_steps < f.steps()) return {};
       return {{absl::StrCat("warm-up takes ", shape.warmup_steps, " steps and the job ends after ",
                             f.steps(), ": the peak learning rate would never be reached"),
                absl::StrCat("write warmup_steps: ", f.steps() / 10, ", or train for more steps"),
                shape.Field("warmup_steps")}};
     }},
    {"decay_steps_range", kError, "schedule.wsd.decay_steps",
     "decay_steps must be positive and fit after the warm-up",
     [](const Facts& f) -> Findings {
       const v1::Schedule::Wsd& wsd = f.job.schedule().wsd();
       if (!f.job.schedule().has_wsd() || !f.IsValid({"train.steps", "schedule"})) return {};
       const int64_t most = f.steps() - wsd.warmup_steps();
       if (wsd.decay_steps() >= 1 && wsd.decay_steps() <= most) return {};
       const std::string fix =
           absl::StrCat("write for example decay_steps: ", std::max<int64_t>(1, most / 10));
       if (!wsd.has_decay_steps()) return Missing("decay_steps", fix);
       return {{absl::StrCat("decay_steps is ", wsd.decay_steps(), " and must be between 1 and ", most,
                             ", the steps after the warm-up"),
                fix}};
     }},
    {"min_lr_ratio_range", kError, "schedule", "min_lr_ratio must be between 0 and 1",
     [](const Facts& f) -> Findings {
       const Shape shape = ShapeOf(f.job.schedule());
       if (shape.min_lr_ratio >= 0 && shape.min_lr_ratio <= 1) return {};
       return {
           {absl::StrCat("min_lr_ratio is ", shape.min_lr_ratio, ", the final learning rate over the peak"),
            "write a number between 0 and 1, for example 0.1", shape.Field("min_lr_ratio")}};
     }},
};

}  // namespace

absl::Span<const Rule> TrainRules() { return kRules; }

}  // namespace fsdpd
