#include "coordinator/attempt/node_failures.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "coordinator/job/job_checkpoints.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxWordsBytes = 200;  // Limit of each failure in a reason.

// Whether the job fails by one node after another without progress, so that the job itself is the suspect.
bool JobIsSuspect(const v1::Job& job) {
  const v1::Job::FailedAttempt* before = nullptr;
  for (const v1::Job::FailedAttempt& each : job.failed_attempts()) {
    if (each.attempt() < job.failure().attempt() && each.cause() != v1::FAILURE_CAUSE_DRAINED) before = &each;
  }
  return before != nullptr && AttemptsWithoutProgress(job) > 1 && before->node_at_fault() &&
         before->node() != job.failure().node();
}

}  // namespace

void NodeFailures::Attached(const std::string& node, const std::string& instance, absl::Time wall) {
  Life& life = lives_[node];
  if (life.number > 0 && life.instance == instance) return;
  life = {instance, life.number + 1, absl::ToUnixNanos(wall)};
}

void NodeFailures::MarkIn(v1::Node* node) const {
  v1::NodeHealth* const standing = node->mutable_health();
  const auto life = lives_.find(node->name());
  if (life != lives_.end()) {
    standing->set_agent_instance(life->second.instance);
    standing->set_agent_unix_nanos(life->second.began_unix_nanos);
  }
  const auto last = failures_.find(node->name());
  if (last == failures_.end()) return;
  standing->set_failure_unix_nanos(last->second.unix_nanos);
  standing->set_failure(last->second.what);
  if (life != lives_.end()) standing->set_failure_agents_ago(life->second.number - last->second.life);
}

void NodeFailures::Load(const v1::Node& node, absl::Time now, absl::Time wall) {
  const v1::NodeHealth& standing = node.health();
  const bool known = !standing.agent_instance().empty();
  const int64_t first = known ? 1 : 0;
  if (known) {
    lives_[node.name()] = {standing.agent_instance(), first + standing.failure_agents_ago(),
                           standing.agent_unix_nanos()};
  }
  if (standing.failure_unix_nanos() == 0) return;
  const absl::Duration ago = wall - absl::FromUnixNanos(standing.failure_unix_nanos());
  failures_[node.name()] = {now - std::max(ago, absl::ZeroDuration()), standing.failure_unix_nanos(), first,
                            standing.failure()};
}

int64_t NodeFailures::CountedAt(const std::string& node) const {
  const auto last = failures_.find(node);
  return last == failures_.end() ? 0 : last->second.unix_nanos;
}

// The newest life, or the one before it: attempts of older lives have ended.
int64_t NodeFailures::LifeOf(const v1::Job& job) const {
  const auto life = lives_.find(job.failure().node());
  if (life == lives_.end()) return 0;
  return life->second.number - (job.start_unix_nanos() < life->second.began_unix_nanos ? 1 : 0);
}

std::string NodeFailures::Take(const v1::Job& job, absl::Time now, absl::Time wall) {
  for (auto it = failures_.begin(); it != failures_.end();)
    it = now - it->second.time > kFailuresWithin ? failures_.erase(it) : std::next(it);
  if (JobIsSuspect(job)) return "";
  const v1::Job::Failure& failure = job.failure();
  const std::string what =
      absl::StrCat("attempt ", failure.attempt(), " of ", job.id(), ": ",
                   CutText(absl::StrReplaceAll(failure.error(), {{"\n", " "}}), kMaxWordsBytes));
  const int64_t date = absl::ToUnixNanos(wall);
  const int64_t life = LifeOf(job);
  const auto [last, first] = failures_.try_emplace(failure.node(), Failure{now, date, life, what});
  // An attempt that was running at the node's previous failure belongs to the same event.
  if (first || job.start_unix_nanos() < last->second.unix_nanos) return "";
  const bool agent_ended = failure.rank() < 0;
  if (agent_ended && life > 0 && life == last->second.life) return "";
  const std::string reason =
      absl::StrCat("two attempts in a row failed on this node: ", last->second.what, "; ", what);
  last->second = {now, date, life, what};  // If the cordon fails, the next failure asks again.
  return reason;
}

}  // namespace fsdpd
