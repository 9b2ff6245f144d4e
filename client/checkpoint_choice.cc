#include "client/checkpoint_choice.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <vector>

namespace fsdpd {

absl::StatusOr<CheckpointChoice> ParseCheckpointChoice(const std::string& text) {
  CheckpointChoice choice;
  const size_t at = text.rfind('@');
  choice.job = text.substr(0, at);
  if (choice.job.empty()) return absl::InvalidArgumentError(absl::StrCat("'", text, "' names no job"));
  if (at == std::string::npos) return choice;
  int64_t step = 0;
  if (!absl::SimpleAtoi(text.substr(at + 1), &step) || step < 1)
    return absl::InvalidArgumentError(absl::StrCat("'", text.substr(at + 1), "' is not a step, from 1"));
  choice.step = step;
  return choice;
}

absl::StatusOr<v1::SavedCheckpoint> Choose(const CheckpointChoice& choice, const v1::Job& job) {
  if (job.checkpoints().empty()) {
    const bool saves = !job.spec().checkpoint().dir().empty();
    return absl::NotFoundError(
        absl::StrCat(job.id(), saves ? " has committed no checkpoint"
                                     : " writes no checkpoints: its spec has no checkpoint.dir"));
  }
  if (!choice.step.has_value()) return *job.checkpoints().rbegin();
  std::vector<int64_t> steps;
  for (const v1::SavedCheckpoint& checkpoint : job.checkpoints()) {
    if (checkpoint.step() == *choice.step) return checkpoint;
    steps.push_back(checkpoint.step());
  }
  return absl::NotFoundError(absl::StrCat(job.id(), " has no checkpoint of step ", *choice.step, ", but of ",
                                          absl::StrJoin(steps, ", ")));
}

}  // namespace fsdpd
