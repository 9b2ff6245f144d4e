#include "coordinator/attempt/job_pause.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/text.h"
#include "coordinator/job/bad_steps.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"

namespace fsdpd {
namespace {

// Of GPUs that did not release their memory.
constexpr int kMaxHeld = 8;

std::string Steps(int64_t steps) { return absl::StrCat(steps, steps == 1 ? " step" : " steps"); }

int64_t SavedStep(const v1::Job& job) {
  return job.checkpoints().empty() ? 0 : job.checkpoints().rbegin()->step();
}

// The attempt failed by itself, and only waits until all ranks are gone.
bool HasFailed(const v1::Job& job) {
  return job.has_failure() && job.failure().attempt() == job.attempt() && !job.failure().drained() &&
         !job.failure().refused();
}

}  // namespace

std::string WhyNotPaused(const v1::Job& job, int64_t grace_ms) {
  if (IsEnded(job.state())) return absl::StrCat("it has ended: ", job.reason());
  if (job.state() == v1::JOB_STATE_CANCELLING) return "it is being cancelled";
  const bool trains = job.state() == v1::JOB_STATE_STARTING || job.state() == v1::JOB_STATE_RUNNING;
  if (!trains) return "";
  if (FilledSpec(job).checkpoint().dir().empty()) {
    return "it writes no checkpoints, so its progress would be lost: only jobs with checkpoint.dir in their "
           "spec can be paused; `fsdpctl cancel` ends this job";
  }
  if (grace_ms > 0 && job.has_failed_checkpoint()) {
    const int64_t saved = SavedStep(job);
    return absl::StrCat("its checkpoint of step ", job.failed_checkpoint().step(),
                        " could not be written: ", job.failed_checkpoint().error(),
                        "; training continues. Pause it once that is fixed, ",
                        saved > 0 ? absl::StrCat("or with `--grace 0`, to resume after step ", saved)
                                  : std::string("or with `--grace 0`, to start from scratch"));
  }
  return "";
}

v1::Job::Pause PauseOf(const v1::Job& job, const std::string& why,
                       const std::vector<std::string>& unconfirmed) {
  v1::Job::Pause pause = job.pause();
  pause.set_step(SavedStep(job));
  pause.mutable_unconfirmed()->Assign(unconfirmed.begin(), unconfirmed.end());
  if (!unconfirmed.empty()) return pause;  // Steps that are not known to be saved may be.
  const int64_t begun = std::max(pause.step(), job.restored().step());
  pause.set_lost_steps(std::max<int64_t>(0, job.last_step().step() - begun));
  if (pause.lost_steps() == 0) return pause;
  const v1::SavedCheckpoint& failed = job.failed_checkpoint();
  pause.set_lost_steps_reason(
      HasFailed(job) ? job.failure().error()
      : failed.step() > pause.step()
          ? absl::StrCat("the checkpoint of step ", failed.step(), " could not be written: ", failed.error())
      : pause.grace_ms() == 0 ? std::string("the ranks had no time to save (--grace 0)")
                              : why);
  return pause;
}

std::string UnconfirmedText(const std::vector<std::string>& nodes) {
  const std::string names = absl::StrJoin(nodes, ", ");
  const bool one = nodes.size() == 1;
  return absl::StrCat("node ", names, one ? " is" : " are",
                      " lost, and ranks there may still train and save; the job is paused once ",
                      one ? "its agent is" : "their agents are",
                      " connected again; `fsdpctl resume` continues the job without the ",
                      one ? "node" : "nodes", ", `fsdpctl cancel` ends it");
}

std::string PausedReason(const v1::Job& job, const v1::Job::Pause& pause) {
  if (pause.unconfirmed_size() > 0) {
    return absl::StrCat("continues without node ", absl::StrJoin(pause.unconfirmed(), ", "),
                        "; whether it saved after ",
                        pause.step() > 0 ? absl::StrCat("step ", pause.step()) : "the start", " is unknown");
  }
  std::string words =
      pause.step() > 0         ? absl::StrCat("paused after step ", pause.step(), ", which is saved")
      : pause.lost_steps() > 0 ? std::string("paused; it will start from scratch")
      : job.has_previous_last_step()
          ? absl::StrCat("paused before attempt ", job.attempt(),
                         " completed a step; it will start from scratch: an earlier attempt reached step ",
                         job.previous_last_step().step(), ", and no checkpoint is saved")
          : std::string("paused; no step was completed");
  if (pause.lost_steps() > 0) {
    absl::StrAppend(&words, "; ", Steps(pause.lost_steps()), pause.step() > 0 ? " after it" : "",
                    pause.lost_steps() == 1 ? " is" : " are", " lost",
                    pause.lost_steps_reason().empty() ? "" : ": ", pause.lost_steps_reason());
  }
  if (pause.held_memory_size() > 0) {
    absl::StrAppend(&words, "; GPU memory is not released: ", absl::StrJoin(pause.held_memory(), ", "));
  } else if (pause.freed_gpus() > 0) {
    absl::StrAppend(&words, "; the memory of ",
                    pause.freed_gpus() == 1 ? "its GPU" : absl::StrCat("its ", pause.freed_gpus(), " GPUs"),
                    " is released");
  }
  return words;
}

void KeepPause(const v1::Job::Pause& pause, v1::Job* job) {
  *job->mutable_pause() = pause;
  const bool found = job->has_failure() && job->failure().attempt() == job->attempt();
  if (found && job->failure().refused()) return;  // It is already excluded from the count.
  if (WantsRewind(*job) && WhyNoRewind(*job).empty()) {
    NoteExcluded(job);
    return Rewind(job);
  }
  const int newer = found ? job->failure().newer_attempt() : 0;
  if (newer == 0 && HasFailed(*job)) return;
  ExcludeAttempt(job);
  NumberAfter(newer, job);
}

void AddFreedMemory(const std::vector<NodePart>& parts, v1::Job::Pause* pause) {
  int64_t held_gpus = 0;
  pause->clear_freed_gpus();
  pause->clear_held_memory();
  for (const NodePart& part : parts) {
    pause->set_freed_gpus(pause->freed_gpus() + part.memory.gpus());
    for (const v1::FreedMemory::Held& held : part.memory.held()) {
      if (++held_gpus > kMaxHeld) continue;
      pause->add_held_memory(absl::StrCat(part.node, " cuda:", held.device(), " ",
                                          held.bytes() > 0 ? HumanBytes(held.bytes()) : "of unknown size"));
    }
  }
  if (held_gpus > kMaxHeld) {
    *pause->mutable_held_memory()->rbegin() = absl::StrCat("and ", held_gpus - kMaxHeld + 1, " more");
  }
}

std::string NextStepText(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_STOPPING) return "";
  constexpr char kLeft[] = "once they have ended or the node is lost";
  if (job.state() == v1::JOB_STATE_CANCELLING) return absl::StrCat("; the job is cancelled ", kLeft);
  if (job.pause().resumes_automatically()) return absl::StrCat("; the job continues ", kLeft);
  return "; the job is paused once they have ended; if the node is lost, `fsdpctl resume` continues the job";
}

std::string IdleCancelReason(const v1::Job& job) {
  const bool paused = job.state() == v1::JOB_STATE_PAUSED;
  if (job.attempt() == 0)
    return paused ? "cancelled while it was paused" : "cancelled before it was launched";
  const int64_t saved = SavedStep(job);
  return absl::StrCat(
      "cancelled while it ", paused ? "was paused" : "waited",
      saved > 0 ? absl::StrCat("; saved after step ", saved) : std::string("; nothing is saved"));
}

void SetHold(v1::Job* job) { job->mutable_pause()->set_step(SavedStep(*job)); }

}  // namespace fsdpd
