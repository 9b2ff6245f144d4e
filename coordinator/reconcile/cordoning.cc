// Reconciler: cordoned nodes, on which no new ranks are placed: by a user, or because attempts failed on
// them.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// Nodes that fall silent this close to each other have a common cause, such as a switch, and are not blamed
// themselves.
constexpr absl::Duration kSameOutage = absl::Seconds(30);
constexpr absl::Duration kOpenEvery = absl::Seconds(1);
constexpr absl::Duration kUncordonRetryDelay = absl::Seconds(10);  // Retry interval after a failed write.

}  // namespace

// Runs `decide` on the reconciler's thread and waits for its result.
absl::Status Reconciler::Decided(const std::function<absl::Status()>& decide) {
  return events_.Call<absl::Status>(
      [decide](const std::function<void(absl::Status)>& answer) { answer(decide()); },
      absl::UnavailableError("the coordinator is stopping; nothing was changed"), OwnTick());
}

bool Reconciler::IsKnown(const std::string& node) const {
  const std::vector<NodeView> nodes = parts_.nodes->Snapshot();
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const NodeView& each) { return each.info.node() == node; });
}

absl::Status Reconciler::Cordon(const std::string& node, const std::string& reason) {
  return Decided([this, node, reason] {
    if (!IsKnown(node) && !cordons_.Find(node).has_value()) return NodeNotFound(node);
    const std::optional<v1::Cordon> before = cordons_.Find(node);
    // A request without a reason does not overwrite a user's reason, but replaces an automatic cordon.
    if (reason.empty() && before.has_value() && !before->automatic()) return absl::OkStatus();
    v1::Cordon cordon;
    cordon.set_reason(reason.empty() && before.has_value() ? before->reason() : reason);
    cordon.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
    // A new reason does not end a drain.
    if (before.has_value() && before->has_drain()) *cordon.mutable_drain() = before->drain();
    const absl::Status set = cordons_.Set(node, cordon);
    if (set.ok()) LogInfo("node cordoned node=%s reason=%s", node, cordon.reason());
    return set;
  });
}

absl::Status Reconciler::Uncordon(const std::string& node) {
  return Decided([this, node] {
    if (!cordons_.Find(node).has_value()) return IsKnown(node) ? absl::OkStatus() : NodeNotFound(node);
    const std::optional<v1::NodePreflight> measured = preflights_.Find(node);
    absl::Status lifted = AcceptMeasured(node);
    if (lifted.ok()) lifted = cordons_.Lift(node, parts_.clock->Wall());
    if (!lifted.ok()) {
      if (measured.has_value()) preflights_.Set(node, *measured);
      return lifted;
    }
    node_failures_.ClearFailures(node);
    not_empty_since_.erase(node);
    LogInfo("node uncordoned node=%s", node);
    return lifted;
  });
}

// Stored before the cordon is lifted: otherwise a restarted coordinator would measure the node again, and
// cordon it for a result that a user has accepted.
absl::Status Reconciler::AcceptMeasured(const std::string& node) {
  const v1::NodePreflight measured = preflights_.Find(node).value_or(v1::NodePreflight());
  if (measured.violations().empty() || measured.accepted()) return absl::OkStatus();
  preflights_.Accept(node);
  ReadPresence();
  return StoreNodes();
}

// An attempt of the job is over: update the failure counts of its nodes.
void Reconciler::JudgeNodes(const v1::Job& job, JobEvent event) {
  if (event == JobEvent::kFinish) {
    for (const v1::Job::Placement& placement : job.placements())
      node_failures_.ClearFailures(placement.node());
  }
  const bool over = event == JobEvent::kRetry || event == JobEvent::kGiveUp;
  const std::string& node = job.failure().node();
  if (!over || job.failure().attempt() != job.attempt() || !job.failure().node_at_fault()) return;
  if (OthersDisconnectedWith(node)) return;
  const std::string reason = node_failures_.Take(job, lease_.now(), parts_.clock->Wall());
  if (reason.empty() || cordons_.Find(node).has_value()) return;
  if (!MayBeCordoned(node))
    return LogWarning("node not cordoned: too few would remain node=%s reason=%s", node, reason);
  v1::Cordon cordon;
  cordon.set_reason(reason);
  cordon.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  cordon.set_automatic(true);
  cordon.set_for_failed_attempts(true);
  healthy_since_.erase(node);
  healthy_before_.erase(node);
  cordons_.SetUnstored(node, cordon);
  LogWarning("node cordoned node=%s reason=%s", node, ShownReason(cordon));
}

// The failure count remains: one more failure within its hour cordons the node again.
void Reconciler::OpenHealthyNodes() {
  if (lease_.now() < next_opening_) return;
  next_opening_ = lease_.now() + kOpenEvery;
  const std::map<std::string, v1::Cordon> cordons = cordons_.All();
  for (auto it = healthy_since_.begin(); it != healthy_since_.end();)
    it = cordons.count(it->first) == 0 ? healthy_since_.erase(it) : std::next(it);
  for (const auto& [node, cordon] : cordons) {
    if (!ExpiresAutomatically(cordon)) continue;
    const Presence presence = PresenceAt(node);
    if (presence != Presence::kConnected) {
      healthy_since_.erase(node);
      if (presence != Presence::kExpected) healthy_before_.erase(node);
      continue;
    }
    const absl::Time since = healthy_since_.try_emplace(node, lease_.now()).first->second;
    if (lease_.now() - since < kHealthyFor) continue;
    const std::string why = absl::StrCat("its agent was connected for ", absl::FormatDuration(kHealthyFor),
                                         " without interruption");
    if (!cordons_.Lift(node, parts_.clock->Wall(), why).ok()) {
      next_opening_ = lease_.now() + kUncordonRetryDelay;
      return;
    }
    LogInfo("node uncordoned node=%s reason=%s", node, why);
  }
}

// InfinitePast() if the node is not healthy, or not cordoned.
absl::Time Reconciler::HealthySince(const std::string& node) const {
  const auto now = healthy_since_.find(node);
  if (now != healthy_since_.end()) return now->second;
  const auto before = healthy_before_.find(node);
  return before == healthy_before_.end() ? absl::InfinitePast() : before->second.second;
}

void Reconciler::MarkStanding(v1::Node* node) const {
  node_failures_.MarkIn(node);
  const absl::Time healthy = HealthySince(node->name());
  if (healthy == absl::InfinitePast()) return;
  node->mutable_health()->set_healthy_unix_nanos(absl::ToUnixNanos(parts_.clock->WallOf(healthy)));
}

void Reconciler::LoadStanding(const v1::Node& node) {
  const absl::Time now = parts_.clock->Now(), wall = parts_.clock->Wall();
  node_failures_.Load(node, now, wall);
  const v1::NodeHealth& standing = node.health();
  if (standing.healthy_unix_nanos() == 0) return;
  const absl::Duration ago = wall - absl::FromUnixNanos(standing.healthy_unix_nanos());
  healthy_before_[node.name()] = {standing.agent_instance(), now - std::max(ago, absl::ZeroDuration())};
}

// A restart of the coordinator does not interrupt the agent's connection time; a restart of the agent does.
void Reconciler::ResumeHealth(const std::string& node, const std::string& instance) {
  healthy_since_.erase(node);
  const auto before = healthy_before_.find(node);
  if (before == healthy_before_.end()) return;
  if (before->second.first == instance) healthy_since_[node] = before->second.second;
  healthy_before_.erase(before);
}

// Automatic cordons leave at least half of the nodes of a kind that are connected, or were a moment ago: a
// common error of all nodes is not fixed by cordoning all of them.
bool Reconciler::MayBeCordoned(const std::string& node) const {
  const auto its = views_.find(node);
  if (its == views_.end()) return false;
  int all = 1, left = 0;
  for (const auto& [name, view] : views_) {
    if (name == node || view.info.device() != its->second.info.device() || !view.connected) continue;
    ++all;
    left += cordons_.Find(name).has_value() ? 0 : 1;
  }
  return 2 * left >= all;
}

bool Reconciler::OthersDisconnectedWith(const std::string& node) const {
  const auto its = views_.find(node);
  if (its == views_.end() || its->second.connected) return false;
  return std::any_of(views_.begin(), views_.end(), [&](const auto& each) {
    const absl::Duration apart = each.second.last_seen - its->second.last_seen;
    return each.first != node && !each.second.connected && absl::AbsDuration(apart) < kSameOutage;
  });
}

}  // namespace fsdpd
