#include "fsdp/engine/bad_step.h"

#include <absl/strings/cord.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace fsdpd {
namespace {

constexpr char kPayload[] = "fsdpd.v1.BadStep";

// The part of the spec that applies to one kind of bad step.
struct Policy {
  const char* field;
  StepAction action;
  int64_t max;
  std::vector<int64_t>* skipped;
};

Policy PolicyOf(const Spec& spec, const v1::BadStep& bad, TrainingState* state) {
  if (bad.kind() == v1::BAD_STEP_KIND_SPIKE)
    return {"train.on_spike", spec.on_spike.action, spec.on_spike.max, &state->skipped_spikes};
  return {"train.on_nonfinite", spec.on_nonfinite.action, spec.on_nonfinite.max, &state->skipped_nonfinite};
}

std::string Advice(const Spec& spec, int64_t step) {
  const bool loads = !spec.checkpoint.load.empty() || !spec.lora.base_model.empty();
  const char* const weights = step == 1 && loads
                                  ? "check the weights that the job started from (notes in the ranks' logs "
                                    "name those with NaN or infinite numbers), "
                                  : "";
  return absl::StrFormat(
      "%slower optimizer.%s.lr, add warmup_steps, %sor let train.on_nonfinite skip such steps", weights,
      spec.optimizer.kind == OptimizerKind::kAdamW ? "adamw" : "sgd",
      spec.optimizer.clip_norm > 0 ? "" : "set optimizer.clip_norm, ");
}

std::string DescribeBadStep(const Spec& spec, const v1::BadStep& bad, double loss_scale) {
  const std::string samples = absl::StrFormat("samples %d to %d", bad.first_sample(), bad.end_sample() - 1);
  if (bad.kind() == v1::BAD_STEP_KIND_SPIKE) {
    return absl::StrFormat(
        "a spike: gradient norm %g is above %g, %g times the median of the last %d steps (loss %g, %s)",
        bad.grad_norm(), bad.threshold(), spec.on_spike.grad_norm_factor, spec.on_spike.window, bad.loss(),
        samples);
  }
  const std::string what = spec.scales_loss()
                               ? absl::StrFormat("not finite with the loss scale lowered to %g", loss_scale)
                               : std::string("not finite");
  return absl::StrFormat("%s: loss %g, gradient norm %g (%s)", what, bad.loss(), bad.grad_norm(), samples);
}

absl::Status EndRun(v1::BadStep bad, bool rewind, const std::string& message) {
  absl::Status status = absl::OutOfRangeError(message);
  bad.set_rewind(rewind);
  status.SetPayload(kPayload, absl::Cord(bad.SerializeAsString()));
  return status;
}

}  // namespace

absl::Status TakeBadStep(const Spec& spec, const v1::BadStep& bad, TrainingState* state) {
  const Policy policy = PolicyOf(spec, bad, state);
  const std::string message = DescribeBadStep(spec, bad, state->loss_scale);
  switch (policy.action) {
    case StepAction::kStop: {
      const bool advises = bad.kind() != v1::BAD_STEP_KIND_SPIKE && !spec.scales_loss();
      return EndRun(bad, false, advises ? absl::StrCat(message, "; ", Advice(spec, bad.step())) : message);
    }
    case StepAction::kRewind:
      return EndRun(bad, true, message);
    case StepAction::kSkip:
      break;
  }
  std::vector<int64_t>& skipped = *policy.skipped;
  skipped.erase(std::remove_if(skipped.begin(), skipped.end(),
                               [&](int64_t step) { return step <= bad.step() - kBadStepsWithin; }),
                skipped.end());
  if (static_cast<int64_t>(skipped.size()) >= policy.max) {
    return EndRun(bad, false,
                  absl::StrFormat("%s; %d of the last %d steps were already skipped, and %s.max is %d",
                                  message, skipped.size(), kBadStepsWithin, policy.field, policy.max));
  }
  skipped.push_back(bad.step());
  return absl::OkStatus();
}

std::optional<v1::BadStep> BadStepOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  v1::BadStep bad;
  if (!payload.has_value() || !bad.ParseFromString(std::string(*payload))) return std::nullopt;
  return bad;
}

absl::Status Annotated(const absl::Status& status, const std::string& prefix) {
  absl::Status annotated(status.code(), absl::StrCat(prefix, status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

void RecordNorm(const Spec& spec, std::optional<float> norm, TrainingState* state) {
  if (!spec.on_spike.watched()) return;
  std::vector<std::optional<float>>& norms = state->grad_norms;
  norms.push_back(norm);
  const auto window = static_cast<size_t>(spec.on_spike.window);
  if (norms.size() > window) norms.erase(norms.begin(), norms.end() - static_cast<int64_t>(window));
}

double WithoutNanSign(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace fsdpd
