#include "client/spec/named_checkpoint.h"

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
  if (choice.job.empty()) return absl::InvalidArgumentError(absl::StrCat("'", text, "' does not name a job"));
  if (at == std::string::npos) return choice;
  int64_t step = 0;
  if (!absl::SimpleAtoi(text.substr(at + 1), &step) || step < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("'", text.substr(at + 1), "' is not a step number from 1"));
  choice.step = step;
  return choice;
}

bool IsRetained(const v1::Job& job, int index) {
  const v1::Checkpoint& spec = job.resolved().checkpoint();
  const bool is_new = spec.keep_last() == 0 || job.checkpoints_size() - index <= spec.keep_last();
  return is_new || (spec.keep_every() > 0 && job.checkpoints(index).step() % spec.keep_every() == 0);
}

absl::StatusOr<v1::SavedCheckpoint> ResolveCheckpoint(const CheckpointChoice& choice, const v1::Job& job) {
  if (job.checkpoints().empty()) {
    const bool saves = !job.spec().checkpoint().dir().empty();
    return absl::NotFoundError(
        absl::StrCat(job.id(), saves ? " has not committed a checkpoint"
                                     : " does not write checkpoints: its spec has no checkpoint.dir"));
  }
  if (!choice.step.has_value()) return *job.checkpoints().rbegin();
  std::vector<int64_t> steps;
  for (int i = 0; i < job.checkpoints_size(); ++i) {
    if (!IsRetained(job, i)) continue;
    if (job.checkpoints(i).step() == *choice.step) return job.checkpoints(i);
    steps.push_back(job.checkpoints(i).step());
  }
  const bool removed =
      std::any_of(job.checkpoints().begin(), job.checkpoints().end(),
                  [&](const v1::SavedCheckpoint& checkpoint) { return checkpoint.step() == *choice.step; });
  return absl::NotFoundError(absl::StrCat(job.id(), " has no checkpoint of step ", *choice.step,
                                          removed ? " any more (checkpoint.keep_last)" : "",
                                          "; available: ", absl::StrJoin(steps, ", ")));
}

}  // namespace fsdpd
