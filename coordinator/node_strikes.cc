#include "coordinator/node_strikes.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <iterator>

#include "base/text.h"
#include "coordinator/job_checkpoints.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxWordsBytes = 200;  // Of each failure in a reason.

bool FollowsItsJobs(const v1::Job& job) {
  const v1::Job::FailedAttempt* before = nullptr;
  for (const v1::Job::FailedAttempt& each : job.failed_attempts()) {
    if (each.attempt() < job.failure().attempt() && each.cause() != v1::FAILURE_CAUSE_DRAINED) before = &each;
  }
  return before != nullptr && AttemptsInVain(job) > 1 && before->blames_node() &&
         before->node() != job.failure().node();
}

}  // namespace

std::string NodeStrikes::Take(const v1::Job& job, absl::Time now, absl::Time wall) {
  for (auto it = strikes_.begin(); it != strikes_.end();)
    it = now - it->second.time > kStrikesWithin ? strikes_.erase(it) : std::next(it);
  if (FollowsItsJobs(job)) return "";
  const v1::Job::Failure& failure = job.failure();
  const std::string what =
      absl::StrCat("attempt ", failure.attempt(), " of ", job.id(), ": ",
                   CutText(absl::StrReplaceAll(failure.error(), {{"\n", " "}}), kMaxWordsBytes));
  const int64_t date = absl::ToUnixNanos(wall);
  const auto [strike, first] = strikes_.try_emplace(failure.node(), Strike{now, date, what});
  // One that ran when the node failed before is of the same event.
  if (first || job.start_unix_nanos() < strike->second.unix_nanos) return "";
  const std::string reason =
      absl::StrCat("two attempts in a row failed by this node: ", strike->second.what, "; ", what);
  strike->second = {now, date, what};  // Where it cannot be cordoned, the next one asks again.
  return reason;
}

}  // namespace fsdpd
