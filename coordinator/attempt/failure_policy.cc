#include "coordinator/attempt/failure_policy.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/fnv1a.h"
#include "base/lookup.h"
#include "base/rank/exit_code.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_plan.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kFirstRetry = absl::Seconds(1);
constexpr absl::Duration kLongestRetry = absl::Minutes(1);

// Other kinds, including those of newer agents, are unknown.
constexpr std::pair<v1::ErrorClass::Kind, v1::FailureCause> kCauses[] = {
    {v1::ErrorClass::KIND_CONFIGURATION, v1::FAILURE_CAUSE_CONFIGURATION},
    {v1::ErrorClass::KIND_DATA, v1::FAILURE_CAUSE_DATA},
    {v1::ErrorClass::KIND_NODE, v1::FAILURE_CAUSE_NODE},
    {v1::ErrorClass::KIND_DISK, v1::FAILURE_CAUSE_DISK}};
constexpr std::pair<v1::FailureCause, const char*> kCauseTexts[] = {
    {v1::FAILURE_CAUSE_CONFIGURATION, " by its configuration"},
    {v1::FAILURE_CAUSE_DATA, " by its data"},
    {v1::FAILURE_CAUSE_NODE, " by its node"},
    {v1::FAILURE_CAUSE_DISK, " by a full disk"}};

bool WasNotLaunched(const v1::Job::Failure& failure) {
  return failure.signal() == 0 && failure.exit_code() == kRefusedExitCode;
}

v1::FailureCause CauseOf(const v1::Job::Failure& failure) {
  if (failure.has_bad_step()) return v1::FAILURE_CAUSE_BAD_STEP;
  if (failure.refused() || failure.drained() || failure.newer_attempt() > 0) return v1::FAILURE_CAUSE_DRAINED;
  if (failure.has_hang()) return v1::FAILURE_CAUSE_HANG;
  const v1::FailureCause reported =
      Lookup(kCauses, failure.error_class().kind(), v1::FAILURE_CAUSE_UNSPECIFIED);
  if (reported != v1::FAILURE_CAUSE_UNSPECIFIED) return reported;
  const bool not_of_a_rank = failure.rank() < 0 && !failure.node().empty();
  if (not_of_a_rank || WasNotLaunched(failure) || failure.stopped_by_agent()) return v1::FAILURE_CAUSE_NODE;
  return v1::FAILURE_CAUSE_PROCESS;
}

bool IsOfFiles(v1::FailureCause cause) {
  return cause == v1::FAILURE_CAUSE_CONFIGURATION || cause == v1::FAILURE_CAUSE_DATA ||
         cause == v1::FAILURE_CAUSE_DISK;
}

// Newest first, without attempts whose node shut down gracefully, which are not failures.
std::vector<v1::Job::FailedAttempt> FailedBefore(const v1::Job& job) {
  std::vector<v1::Job::FailedAttempt> failed;
  for (const v1::Job::FailedAttempt& each : job.failed_attempts()) {
    if (each.attempt() < job.attempt() && each.cause() != v1::FAILURE_CAUSE_DRAINED)
      failed.insert(failed.begin(), each);
  }
  return failed;
}

// Nodes of the failures directly before this one that have the same cause, without attempts before a retry:
// the user may have fixed the cause.
std::vector<std::string> NodesOfSameFailures(const v1::Job& job, v1::FailureCause cause) {
  std::vector<std::string> nodes;
  for (const v1::Job::FailedAttempt& each : FailedBefore(job)) {
    const auto found = static_cast<int>(nodes.size());
    if (each.cause() != cause || found + 1 >= AttemptsWithoutProgress(job)) break;
    nodes.push_back(each.node());
  }
  return nodes;
}

// Whether the job itself may be the reason for the missing progress.
bool MayBeOfJob(v1::FailureCause cause, bool blames_node) {
  return !blames_node && (cause == v1::FAILURE_CAUSE_PROCESS || cause == v1::FAILURE_CAUSE_HANG);
}

// The newest step that the current attempt reported.
int64_t StepOf(const v1::Job& job) {
  if (job.has_last_step()) return job.last_step().step();
  for (const v1::Job::FailedAttempt& each : job.failed_attempts()) {
    if (each.attempt() == job.attempt()) return each.step();
  }
  return 0;
}

// Whether any known attempt completed a step.
bool HasTrained(const v1::Job& job) {
  const auto& failed = job.failed_attempts();
  const auto stepped = [&](const v1::Job::FailedAttempt& each) {
    return each.step() > job.restored().step();
  };
  return job.attempts_before_checkpoint() > 0 || !job.checkpoints().empty() || job.has_last_step() ||
         std::any_of(failed.begin(), failed.end(), stepped);
}

// The last step of all recent attempts if none made progress over the ones before; -1 otherwise.
int64_t StepOfNoProgress(const v1::Job& job, const v1::Job::Failure& failure) {
  const std::vector<v1::Job::FailedAttempt> before = FailedBefore(job);
  const bool saves = !FilledSpec(job).checkpoint().dir().empty();
  if (!saves || AttemptsWithoutProgress(job) < kMaxAttemptsWithoutProgress ||
      before.size() + 1 < kMaxAttemptsWithoutProgress)
    return -1;
  if (!MayBeOfJob(failure.cause(), failure.node_at_fault())) return -1;
  const int64_t first = before[kMaxAttemptsWithoutProgress - 2].step();
  int64_t newest = StepOf(job);
  for (int i = 0; i < kMaxAttemptsWithoutProgress - 1; ++i) {
    if (!MayBeOfJob(before[i].cause(), before[i].node_at_fault())) return -1;
    newest = std::max(newest, before[i].step());
  }
  return newest > first ? -1 : first;
}

// A deterministic value in [0, 1), equal in every build.
double Fraction(const v1::Job& job) {
  uint64_t hash = Fnv1a(absl::StrCat(job.id(), "/", job.attempt()));
  hash ^= hash >> 32;  // Ids that differ in their last digit differ mostly in low bits.
  return static_cast<double>((hash * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

int FailuresInARow(const v1::Job& job) {
  const v1::Job::Failure& failure = job.failure();
  if (!job.has_failure() || failure.attempt() != job.attempt()) return CountedAttempts(job);
  if (failure.has_bad_step()) return 0;  // The rewind fixes the cause.
  if (failure.refused()) return job.refused_launches();
  return failure.drained() ? 1 : CountedAttempts(job);
}

}  // namespace

const char* CauseText(v1::FailureCause cause) { return Lookup(kCauseTexts, cause, ""); }

void Classify(v1::Job::Failure* failure) {
  failure->set_cause(CauseOf(*failure));
  failure->set_node_at_fault(failure->error_class().kind() == v1::ErrorClass::KIND_NODE ||
                             failure->hang().caused_by_node());
}

void KeepFailedAttempt(v1::Job* job) {
  const v1::Job::Failure& failure = job->failure();
  auto* kept = job->mutable_failed_attempts();
  v1::Job::FailedAttempt* entry = kept->empty() ? nullptr : kept->Mutable(kept->size() - 1);
  if (entry == nullptr || entry->attempt() != failure.attempt()) {
    if (kept->size() >= kMaxFailedAttempts) kept->DeleteSubrange(0, kept->size() - kMaxFailedAttempts + 1);
    entry = kept->Add();
    entry->set_attempt(failure.attempt());
  }
  // NO_PROGRESS describes the row of attempts, not this one, so the attempt keeps its own cause.
  if (failure.cause() != v1::FAILURE_CAUSE_NO_PROGRESS) entry->set_cause(failure.cause());
  int ranks = 0;
  for (const v1::Job::Placement& placement : job->placements()) ranks += placement.ranks();
  entry->set_ranks(ranks);
  entry->set_node(failure.node());
  entry->set_node_at_fault(failure.node_at_fault());
  entry->set_step(std::max({entry->step(), job->restored().step(), job->last_step().step()}));
}

std::string WhyNoRetry(const v1::Job& job, v1::Job::Failure* failure) {
  if (failure->error_class().permanent()) return "another attempt would fail in the same way";
  if (failure->cause() == v1::FAILURE_CAUSE_DISK && !failure->error_class().node_only())
    return "another attempt would fail in the same way: free disk space for the checkpoint; "
           "`fsdpctl retry` resumes from the newest checkpoint, or starts over without one";
  if (IsOfFiles(failure->cause())) {
    if (HasTrained(job)) return "";
    if (!failure->error_class().node_only())
      return absl::StrCat(
          "not launched again before its first step: fix the file or directory and run `fsdpctl retry ",
          job.id(), "`; if the spec must change, submit a new job");
    const std::vector<std::string> nodes = NodesOfSameFailures(job, failure->cause());
    const bool again = std::find(nodes.begin(), nodes.end(), failure->node()) != nodes.end();
    return again ? absl::StrCat("an earlier attempt failed in the same way on node ", failure->node(),
                                ", and none completed a step")
                 : "";
  }
  const int64_t step = StepOfNoProgress(job, *failure);
  if (step < 0) return "";
  failure->set_cause(v1::FAILURE_CAUSE_NO_PROGRESS);
  return absl::StrCat(kMaxAttemptsWithoutProgress, " attempts in a row committed no checkpoint and ",
                      step == 0 ? "completed no step" : absl::StrCat("made no progress beyond step ", step));
}

absl::Duration RetryDelay(const v1::Job& job) {
  const int in_a_row = FailuresInARow(job);
  if (in_a_row < 1) return absl::ZeroDuration();
  const int doublings = std::min(in_a_row - 1, 30);
  const absl::Duration longest = std::min((int64_t{1} << doublings) * kFirstRetry, kLongestRetry);
  return absl::Floor(longest * (1 - 0.5 * Fraction(job)), absl::Milliseconds(10));
}

std::set<std::string> NodesToAvoid(const v1::Job& job) {
  const v1::Job::Failure& failure = job.failure();
  if (!job.has_failure() || failure.attempt() != job.attempt()) return {};
  // An agent that refused a launch may refuse again, for example while its slots are occupied.
  const bool may_be_of_node =
      failure.node_at_fault() || WasNotLaunched(failure) || IsOfFiles(failure.cause());
  if (!may_be_of_node || failure.node().empty()) return {};
  std::set<std::string> nodes = {failure.node()};
  if (IsOfFiles(failure.cause())) {
    const std::vector<std::string> earlier = NodesOfSameFailures(job, failure.cause());
    nodes.insert(earlier.begin(), earlier.end());
  }
  return nodes;
}

}  // namespace fsdpd
