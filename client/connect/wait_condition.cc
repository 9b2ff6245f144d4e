#include "client/connect/wait_condition.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>

#include "base/text.h"
#include "client/text/job_text.h"

namespace fsdpd {
namespace {

absl::StatusOr<v1::JobState> StateOf(absl::string_view name) {
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  const bool known = v1::JobState_Parse(absl::StrCat("JOB_STATE_", absl::AsciiStrToUpper(name)), &state);
  if (known && state != v1::JOB_STATE_UNSPECIFIED) return state;
  const std::string nearest = Nearest(name, StateNames());
  return absl::InvalidArgumentError(
      absl::StrCat("unknown state '", name, "'",
                   nearest.empty() ? absl::StrCat("; use one of ", absl::StrJoin(StateNames(), ", "))
                                   : absl::StrCat("; did you mean ", nearest, "?")));
}

}  // namespace

std::vector<std::string> StateNames() {
  std::vector<std::string> names;
  const auto* states = v1::JobState_descriptor();
  for (int i = 0; i < states->value_count(); ++i) {
    const auto state = static_cast<v1::JobState>(states->value(i)->number());
    if (state != v1::JOB_STATE_UNSPECIFIED) names.push_back(StateName(state));
  }
  return names;
}

absl::StatusOr<WaitCondition> ParseWaitCondition(absl::string_view text) {
  WaitCondition condition;
  if (text == "deleted") {
    condition.is_deletion = true;
  } else if (text == "ended") {
    condition.states = {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLED};
  } else if (absl::ConsumePrefix(&text, "state=")) {
    for (const absl::string_view name : absl::StrSplit(text, ',')) {
      const absl::StatusOr<v1::JobState> state = StateOf(name);
      if (!state.ok()) return state.status();
      condition.states.push_back(*state);
    }
  } else if (absl::ConsumePrefix(&text, "step=")) {
    if (!absl::SimpleAtoi(text, &condition.step) || condition.step < 1)
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a step; write a number from 1"));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid condition '", text, "'; write state=NAME, ended, step=N or deleted"));
  }
  return condition;
}

WaitVerdict Judge(const WaitCondition& condition, const v1::Job& job) {
  if (condition.is_deletion) return WaitVerdict::kNotYet;
  if (condition.step > 0) {
    if (StepOf(job) >= condition.step) return WaitVerdict::kMet;
    const int64_t total = TotalSteps(job);
    const bool too_few = total > 0 && total < condition.step;
    return too_few || IsEnded(job.state()) ? WaitVerdict::kNever : WaitVerdict::kNotYet;
  }
  const bool is_in = std::count(condition.states.begin(), condition.states.end(), job.state()) > 0;
  if (is_in) return WaitVerdict::kMet;
  return IsEnded(job.state()) ? WaitVerdict::kNever : WaitVerdict::kNotYet;
}

}  // namespace fsdpd
