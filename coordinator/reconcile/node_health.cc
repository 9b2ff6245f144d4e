#include "coordinator/reconcile/node_health.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <iterator>

#include "base/log.h"

namespace fsdpd {
namespace {

// Nodes that fall silent this close to each other have a common cause, such as a switch, and are not blamed
// themselves.
constexpr absl::Duration kSameOutage = absl::Seconds(30);
constexpr absl::Duration kOpenEvery = absl::Seconds(1);
constexpr absl::Duration kUncordonRetryDelay = absl::Seconds(10);  // Retry interval after a failed write.

}  // namespace

void NodeHealth::Load(const v1::Node& node) {
  const absl::Time now = parts_.clock->Now(), wall = parts_.clock->Wall();
  node_failures_.Load(node, now, wall);
  const v1::NodeHealth& standing = node.health();
  if (standing.healthy_unix_nanos() == 0) return;
  const absl::Duration ago = wall - absl::FromUnixNanos(standing.healthy_unix_nanos());
  healthy_before_[node.name()] = {standing.agent_instance(), now - std::max(ago, absl::ZeroDuration())};
}

// A restart of the coordinator does not interrupt the agent's connection time; a restart of the agent does.
void NodeHealth::OnAttached(const std::string& node, const std::string& instance) {
  node_failures_.Attached(node, instance, parts_.clock->Wall());
  healthy_since_.erase(node);
  const auto before = healthy_before_.find(node);
  if (before == healthy_before_.end()) return;
  if (before->second.first == instance) healthy_since_[node] = before->second.second;
  healthy_before_.erase(before);
}

void NodeHealth::OnAttemptOver(const v1::Job& job, JobEvent event) {
  if (event == JobEvent::kFinish) {
    for (const v1::Job::Placement& placement : job.placements())
      node_failures_.ClearFailures(placement.node());
  }
  const bool over = event == JobEvent::kRetry || event == JobEvent::kGiveUp;
  const std::string& node = job.failure().node();
  if (!over || job.failure().attempt() != job.attempt() || !job.failure().node_at_fault()) return;
  if (OthersDisconnectedWith(node)) return;
  const std::string reason = node_failures_.Take(job, parts_.presence->now(), parts_.clock->Wall());
  if (reason.empty() || parts_.cordons->Find(node).has_value()) return;
  if (!MayBeCordoned(node))
    return LogWarning("node not cordoned: too few would remain node=%s reason=%s", node, reason);
  v1::Cordon cordon;
  cordon.set_reason(reason);
  cordon.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  cordon.set_automatic(true);
  cordon.set_for_failed_attempts(true);
  healthy_since_.erase(node);
  healthy_before_.erase(node);
  parts_.cordons->SetUnstored(node, cordon);
  LogWarning("node cordoned node=%s reason=%s", node, ShownReason(cordon));
}

// The failure count remains: one more failure within its hour cordons the node again.
void NodeHealth::UncordonHealthy() {
  const absl::Time tick = parts_.presence->now();
  if (tick < next_opening_) return;
  next_opening_ = tick + kOpenEvery;
  const std::map<std::string, v1::Cordon> cordons = parts_.cordons->All();
  for (auto it = healthy_since_.begin(); it != healthy_since_.end();)
    it = cordons.count(it->first) == 0 ? healthy_since_.erase(it) : std::next(it);
  for (const auto& [node, cordon] : cordons) {
    if (!ExpiresAutomatically(cordon)) continue;
    const Presence presence = parts_.presence->Of(node);
    if (presence != Presence::kConnected) {
      healthy_since_.erase(node);
      if (presence != Presence::kExpected) healthy_before_.erase(node);
      continue;
    }
    const absl::Time since = healthy_since_.try_emplace(node, tick).first->second;
    if (tick - since < kHealthyFor) continue;
    const std::string why = absl::StrCat("its agent was connected for ", absl::FormatDuration(kHealthyFor),
                                         " without interruption");
    if (!parts_.cordons->Lift(node, parts_.clock->Wall(), why).ok()) {
      next_opening_ = tick + kUncordonRetryDelay;
      return;
    }
    LogInfo("node uncordoned node=%s reason=%s", node, why);
  }
}

void NodeHealth::Forget(const std::string& node) {
  node_failures_.ForgetNode(node);
  healthy_before_.erase(node);
}

void NodeHealth::Delete(const std::string& node) {
  Forget(node);
  healthy_since_.erase(node);
  node_failures_.ClearFailures(node);
}

absl::Time NodeHealth::HealthySince(const std::string& node) const {
  const auto now = healthy_since_.find(node);
  if (now != healthy_since_.end()) return now->second;
  const auto before = healthy_before_.find(node);
  return before == healthy_before_.end() ? absl::InfinitePast() : before->second.second;
}

void NodeHealth::MarkIn(v1::Node* node) const {
  node_failures_.MarkIn(node);
  const absl::Time healthy = HealthySince(node->name());
  if (healthy == absl::InfinitePast()) return;
  node->mutable_health()->set_healthy_unix_nanos(absl::ToUnixNanos(parts_.clock->WallOf(healthy)));
}

// Counts nodes that are connected, or were a moment ago: a common error of all nodes is not fixed by
// cordoning all of them.
bool NodeHealth::MayBeCordoned(const std::string& node) const {
  const NodeView* its = parts_.presence->Find(node);
  if (its == nullptr) return false;
  int all = 1, left = 0;
  for (const auto& [name, view] : parts_.presence->views()) {
    if (name == node || view.info.device() != its->info.device() || !view.connected) continue;
    ++all;
    left += parts_.cordons->Find(name).has_value() ? 0 : 1;
  }
  return 2 * left >= all;
}

bool NodeHealth::OthersDisconnectedWith(const std::string& node) const {
  const NodeView* its = parts_.presence->Find(node);
  if (its == nullptr || its->connected) return false;
  const auto& views = parts_.presence->views();
  return std::any_of(views.begin(), views.end(), [&](const auto& each) {
    const absl::Duration apart = each.second.last_seen - its->last_seen;
    return each.first != node && !each.second.connected && absl::AbsDuration(apart) < kSameOutage;
  });
}

}  // namespace fsdpd
