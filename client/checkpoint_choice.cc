#include "client/checkpoint_choice.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
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

namespace {

// As its job's folder keeps them (fsdp/checkpoint/job_folder.h). Of another job's there it may be fewer.
std::vector<v1::SavedCheckpoint> Kept(const v1::Job& job) {
  const v1::Checkpoint& spec = job.resolved().checkpoint();
  std::vector<v1::SavedCheckpoint> kept;
  const int64_t count = job.checkpoints_size();
  for (int64_t i = 0; i < count; ++i) {
    const v1::SavedCheckpoint& checkpoint = job.checkpoints(static_cast<int>(i));
    const bool is_new = spec.keep_last() == 0 || count - i <= spec.keep_last();
    const bool spared = spec.keep_every() > 0 && checkpoint.step() % spec.keep_every() == 0;
    if (is_new || spared) kept.push_back(checkpoint);
  }
  return kept;
}

}  // namespace

absl::StatusOr<v1::SavedCheckpoint> Choose(const CheckpointChoice& choice, const v1::Job& job) {
  if (job.checkpoints().empty()) {
    const bool saves = !job.spec().checkpoint().dir().empty();
    return absl::NotFoundError(
        absl::StrCat(job.id(), saves ? " has committed no checkpoint"
                                     : " writes no checkpoints: its spec has no checkpoint.dir"));
  }
  if (!choice.step.has_value()) return *job.checkpoints().rbegin();
  std::vector<int64_t> steps;
  for (const v1::SavedCheckpoint& checkpoint : Kept(job)) {
    if (checkpoint.step() == *choice.step) return checkpoint;
    steps.push_back(checkpoint.step());
  }
  const bool removed =
      std::any_of(job.checkpoints().begin(), job.checkpoints().end(),
                  [&](const v1::SavedCheckpoint& checkpoint) { return checkpoint.step() == *choice.step; });
  return absl::NotFoundError(absl::StrCat(job.id(), " has no checkpoint of step ", *choice.step,
                                          removed ? " any more (checkpoint.keep_last)" : "", ", but of ",
                                          absl::StrJoin(steps, ", ")));
}

}  // namespace fsdpd
