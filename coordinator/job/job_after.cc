#include "coordinator/job/job_after.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>

#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxNames = 8;  // In one sentence.

std::vector<std::string> Open(const v1::Job& job) {
  std::vector<std::string> open;
  for (const v1::Job::After& after : job.after()) {
    if (!after.succeeded()) open.push_back(after.job());
  }
  return open;
}

// The dependencies, while none has failed. A paused dependency is named, because it only continues after a
// user resumes it.
std::string Success(const v1::Job& job, const StateOfJob& state_of) {
  std::vector<std::string> open = Open(job), paused = open;
  const auto runs = [&](const std::string& id) { return state_of(id) != v1::JOB_STATE_PAUSED; };
  paused.erase(std::remove_if(paused.begin(), paused.end(), runs), paused.end());
  const std::string success = absl::StrCat("the success of ", JobNames(std::move(open)));
  if (paused.empty()) return success;
  return absl::StrCat(success, "; ", JobNames(paused), paused.size() == 1 ? " is" : " are",
                      " paused: `fsdpctl resume ", paused[0], "` resumes it");
}

// Dependencies that ended without success.
std::vector<std::string> Unsuccessful(const v1::Job& job, const StateOfJob& state_of) {
  std::vector<std::string> ended = Open(job);
  ended.erase(
      std::remove_if(ended.begin(), ended.end(), [&](const auto& id) { return !IsEnded(state_of(id)); }),
      ended.end());
  return ended;
}

}  // namespace

std::string JobNames(std::vector<std::string> names) {
  const bool all = names.size() <= kMaxNames;
  if (!all) names.resize(kMaxNames);
  return absl::StrCat(absl::StrJoin(names, ", "), all ? "" : ", ...");
}

bool WaitsForJobs(const v1::Job& job) { return !Open(job).empty(); }

bool WaitsForJob(const v1::Job& job, const std::string& id) {
  const std::vector<std::string> open = Open(job);
  return std::find(open.begin(), open.end(), id) != open.end();
}

DependencyChanges CheckDependencies(const v1::Job& job, const StateOfJob& state_of) {
  DependencyChanges changes;
  for (const std::string& id : Open(job)) {
    const v1::JobState state = state_of(id);
    if (state == v1::JOB_STATE_SUCCEEDED) changes.succeeded.push_back(id);
    if (state == v1::JOB_STATE_UNSPECIFIED && changes.gone.empty()) changes.gone = id;
  }
  return changes;
}

void RecordSucceeded(const DependencyChanges& changes, v1::Job* job) {
  for (v1::Job::After& after : *job->mutable_after()) {
    const auto& ids = changes.succeeded;
    if (std::find(ids.begin(), ids.end(), after.job()) != ids.end()) after.set_succeeded(true);
  }
}

std::string AfterReason(const v1::Job& job, const StateOfJob& state_of) {
  const std::vector<std::string> ended = Unsuccessful(job, state_of);
  if (ended.empty()) return absl::StrCat("waits for ", Success(job, state_of));
  std::vector<std::string> parts;
  for (size_t i = 0; i < ended.size() && i < kMaxNames; ++i) {
    const bool cancelled = state_of(ended[i]) == v1::JOB_STATE_CANCELLED;
    parts.push_back(absl::StrCat("job ", ended[i], cancelled ? " was cancelled" : " has failed"));
  }
  if (parts.size() < ended.size()) parts.push_back("...");
  return absl::StrCat(absl::StrJoin(parts, ", "),
                      ", and this job waits for its success: retry it (`fsdpctl retry ", ended[0],
                      "`), or cancel this job (`fsdpctl cancel ", job.id(), "`)");
}

v1::Job::Waiting WaitingForJobs(const v1::Job& job, const StateOfJob& state_of) {
  const std::vector<std::string> ended = Unsuccessful(job, state_of), open = Open(job);
  v1::Job::Waiting waiting;
  waiting.set_code(ended.empty() ? v1::Job::Waiting::CODE_AFTER : v1::Job::Waiting::CODE_AFTER_FAILED);
  waiting.set_remedy(ended.empty() ? Success(job, state_of)
                                   : absl::StrCat(JobNames(ended), " to be retried (fsdpctl retry)"));
  for (const std::string& id : ended.empty() ? open : ended) waiting.add_jobs(id);
  return waiting;
}

}  // namespace fsdpd
