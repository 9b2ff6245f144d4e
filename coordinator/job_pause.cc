#include "coordinator/job_pause.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "coordinator/bad_steps.h"
#include "coordinator/job_checkpoints.h"
#include "coordinator/job_machine.h"
#include "coordinator/job_plan.h"

namespace fsdpd {
namespace {

std::string Steps(int64_t steps) { return absl::StrCat(steps, steps == 1 ? " step" : " steps"); }

int64_t SavedStep(const v1::Job& job) {
  return job.checkpoints().empty() ? 0 : job.checkpoints().rbegin()->step();
}

// Its attempt has ended by itself, and only waits until all ranks are gone.
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
    return "it writes no checkpoints, so what it has trained would be lost: jobs that are to be paused have "
           "a "
           "checkpoint.dir in their spec; `fsdpctl cancel` ends this one";
  }
  if (grace_ms > 0 && job.has_failed_checkpoint()) {
    const int64_t saved = SavedStep(job);
    return absl::StrCat("its checkpoint of step ", job.failed_checkpoint().step(),
                        " could not be written: ", job.failed_checkpoint().error(),
                        "; it trains on. Pause it once that is mended, ",
                        saved > 0 ? absl::StrCat("or with `--grace 0`, to go on after step ", saved)
                                  : std::string("or with `--grace 0`, to begin anew"));
  }
  return "";
}

v1::Job::Pause PauseOf(const v1::Job& job, const std::string& why) {
  v1::Job::Pause pause = job.pause();
  pause.set_step(SavedStep(job));
  const int64_t begun = std::max(pause.step(), job.restored().step());
  pause.set_lost_steps(std::max<int64_t>(0, job.last_step().step() - begun));
  if (pause.lost_steps() == 0) return pause;
  const v1::SavedCheckpoint& failed = job.failed_checkpoint();
  pause.set_why_lost(HasFailed(job)                 ? job.failure().error()
                     : failed.step() > pause.step() ? absl::StrCat("the checkpoint of step ", failed.step(),
                                                                   " could not be written: ", failed.error())
                                                    : why);
  return pause;
}

std::string PausedWords(const v1::Job::Pause& pause) {
  std::string words = pause.step() > 0 ? absl::StrCat("paused after step ", pause.step(), ", which is saved")
                      : pause.lost_steps() > 0 ? std::string("paused; it will begin anew")
                                               : std::string("paused before a step was made");
  if (pause.lost_steps() > 0) {
    absl::StrAppend(&words, "; ", Steps(pause.lost_steps()), pause.step() > 0 ? " after it" : "",
                    pause.lost_steps() == 1 ? " is" : " are", " lost", pause.why_lost().empty() ? "" : ": ",
                    pause.why_lost());
  }
  return words;
}

void KeepPause(const v1::Job::Pause& pause, v1::Job* job) {
  *job->mutable_pause() = pause;
  const bool found = job->has_failure() && job->failure().attempt() == job->attempt();
  if (found && job->failure().refused()) return;  // It is among those already that do not count.
  if (WantsToGoBack(*job) && WhyNotBack(*job).empty()) return GoBack(job);
  const int newer = found ? job->failure().newer_attempt() : 0;
  if (newer == 0 && HasFailed(*job)) return;
  job->set_drains_since_checkpoint(job->drains_since_checkpoint() + 1);
  NumberAfter(newer, job);
}

void KeepHold(v1::Job* job) { job->mutable_pause()->set_step(SavedStep(*job)); }

}  // namespace fsdpd
