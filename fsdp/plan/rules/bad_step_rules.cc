// Rules of train.on_nonfinite and train.on_spike.
#include <absl/strings/str_cat.h>

#include <cmath>

#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

// Limit of the lists that record skipped samples (fsdp/checkpoint/job/training_state.h, Job.skipped_samples).
constexpr int64_t kMost = 1000;
constexpr int64_t kMostWindow = 1024;

const v1::OnNonfinite& Nonfinite(const Facts& f) { return f.job.train().on_nonfinite(); }
const v1::OnSpike& Spike(const Facts& f) { return f.job.train().on_spike(); }

bool IsBounded(v1::StepAction action) {
  return action == v1::STEP_ACTION_SKIP || action == v1::STEP_ACTION_REWIND;
}

// Both messages have an action and a max.
template <typename OnBadStep>
Findings ChecksUnusedMax(const Facts& f, const OnBadStep& on, const std::string& field) {
  if (!on.has_max() || IsBounded(on.action()) || !f.IsValid({field + ".action", field + ".max"})) return {};
  return {{"the first such step fails the attempt", "leave it out, or write action: skip or action: rewind",
           "", absl::StrCat(on.max()), "none"}};
}

Findings ChecksRewind(const Facts& f, v1::StepAction action) {
  if (action != v1::STEP_ACTION_REWIND) return {};
  if (!f.IsValid({"checkpoint.dir", "checkpoint.every_steps", "checkpoint.every_minutes", "train.steps"}))
    return {};
  const v1::Checkpoint& checkpoint = f.job.checkpoint();
  const int64_t every = checkpoint.every_steps();
  const bool between = checkpoint.every_minutes() > 0 || (every > 0 && every <= f.steps());
  if (!checkpoint.dir().empty() && between) return {};
  return {{"the job writes no periodic checkpoints, so it would rewind to step 1",
           "write checkpoint.dir and checkpoint.every_steps or every_minutes, or use action: skip"}};
}

const Rule kRules[] = {
    {"bad_step_nonfinite_max", kError, "train.on_nonfinite.max", "max must be between 1 and 1000",
     Between(1, kMost, "write a number from 1 to 1000, or omit it (default: 10)")},
    {"bad_step_nonfinite_max_unused", kAdjust, "train.on_nonfinite.max",
     "max has no effect unless action is skip or rewind",
     [](const Facts& f) { return ChecksUnusedMax(f, Nonfinite(f), "train.on_nonfinite"); }},
    {"bad_step_skip_with_loss_scale", kError, "train.on_nonfinite.action",
     "action: skip is not supported with fp16, whose loss scaling already skips non-finite steps",
     When{[](const Facts& f) {
            return Nonfinite(f).action() == v1::STEP_ACTION_SKIP && f.IsValid({"precision"}) &&
                   f.compute() == DType::kFp16;
          },
          "loss scaling already skips such steps and lowers the scale; below a scale of 1, a lower scale "
          "cannot make a step finite",
          "write action: rewind or action: stop, or leave on_nonfinite out"}},
    {"bad_step_nonfinite_rewind", kError, "train.on_nonfinite.action",
     "action: rewind requires periodic checkpoints",
     [](const Facts& f) { return ChecksRewind(f, Nonfinite(f).action()); }},
    {"bad_step_spike_action", kError, "train.on_spike.action", "on_spike requires an action",
     [](const Facts& f) -> Findings {
       if (!f.job.train().has_on_spike() || Spike(f).action() != v1::STEP_ACTION_UNSPECIFIED) return {};
       return Missing("action", "write action: skip, action: rewind or action: stop, or leave on_spike out");
     }},
    {"bad_step_spike_max", kError, "train.on_spike.max", "max must be between 1 and 1000",
     Between(1, kMost, "write a number from 1 to 1000, or omit it (default: 10)")},
    {"bad_step_spike_max_unused", kAdjust, "train.on_spike.max",
     "max has no effect unless action is skip or rewind",
     [](const Facts& f) { return ChecksUnusedMax(f, Spike(f), "train.on_spike"); }},
    {"bad_step_spike_factor", kError, "train.on_spike.grad_norm_factor", "grad_norm_factor must be above 1",
     [](const Facts& f) -> Findings {
       const double factor = Spike(f).grad_norm_factor();
       if (!f.job.train().has_on_spike() || (factor > 1 && std::isfinite(factor))) return {};
       return {{absl::StrCat("grad_norm_factor is ", factor,
                             " and must be above 1 (half of all steps exceed the median)"),
                "write a number above 1, or omit it (default: 10)"}};
     }},
    {"bad_step_spike_window", kError, "train.on_spike.window", "window must be between 2 and 1024",
     Between(2, kMostWindow, "write for example window: 128 (the default)")},
    {"bad_step_spike_rewind", kError, "train.on_spike.action", "action: rewind requires periodic checkpoints",
     [](const Facts& f) { return ChecksRewind(f, Spike(f).action()); }},
};

}  // namespace

absl::Span<const Rule> BadStepRules() { return kRules; }

}  // namespace fsdpd
