// Reconciler: nodes on which no job is placed any more, since somebody says so or since attempts failed by
// them.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "coordinator/errors.h"
#include "coordinator/reconciler.h"

namespace fsdpd {
namespace {

// Nodes that fall silent so close to each other have one cause, a switch or a room, which is none of them.
constexpr absl::Duration kSameOutage = absl::Seconds(30);
constexpr absl::Duration kOpenEvery = absl::Seconds(1);
constexpr absl::Duration kFailedOpenPause = absl::Seconds(10);  // The store takes nothing at the moment.

}  // namespace

// Waits for the reconciler's thread to do it.
absl::Status Reconciler::Decided(const std::function<absl::Status()>& decide) {
  return events_.Ask<absl::Status>(
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
    // Who has nothing to say takes away nobody's reason, least of all what attempts failed by.
    if (reason.empty() && before.has_value() && !before->automatic()) return absl::OkStatus();
    v1::Cordon cordon;
    cordon.set_reason(reason.empty() && before.has_value() ? before->reason() : reason);
    cordon.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
    // Another reason ends no drain.
    if (before.has_value() && before->has_drain()) *cordon.mutable_drain() = before->drain();
    const absl::Status set = cordons_.Set(node, cordon);
    if (set.ok()) LogInfo("a node is cordoned node=%s reason=%s", node, cordon.reason());
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
    node_failures_.Forgive(node);
    not_empty_since_.erase(node);
    LogInfo("a node is no longer cordoned node=%s", node);
    return lifted;
  });
}

// On disk before the cordon is lifted: the next life of the coordinator would measure the node again, and
// cordon it by what somebody has accepted.
absl::Status Reconciler::AcceptMeasured(const std::string& node) {
  const v1::NodePreflight measured = preflights_.Find(node).value_or(v1::NodePreflight());
  if (measured.faults().empty() || measured.accepted()) return absl::OkStatus();
  preflights_.Accept(node);
  ReadPresence();
  return StoreNodes();
}

// An attempt of the job is over: what that says of the nodes that it had.
void Reconciler::JudgeNodes(const v1::Job& job, JobEvent event) {
  if (event == JobEvent::kFinish) {
    for (const v1::Job::Placement& placement : job.placements()) node_failures_.Forgive(placement.node());
  }
  const bool over = event == JobEvent::kRetry || event == JobEvent::kGiveUp;
  const std::string& node = job.failure().node();
  if (!over || job.failure().attempt() != job.attempt() || !job.failure().blames_node()) return;
  if (OthersFellSilentWith(node)) return;
  const std::string reason = node_failures_.Take(job, lease_.now(), parts_.clock->Wall());
  if (reason.empty() || cordons_.Find(node).has_value()) return;
  if (!MayBeCordoned(node))
    return LogWarning("a node is not cordoned, as too few would be left node=%s: %s", node, reason);
  v1::Cordon cordon;
  cordon.set_reason(reason);
  cordon.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  cordon.set_automatic(true);
  cordon.set_for_failed_attempts(true);
  healthy_since_.erase(node);
  healthy_before_.erase(node);
  cordons_.SetAnyway(node, cordon);
  LogWarning("a node is cordoned node=%s reason=%s", node, ShownReason(cordon));
}

// The failure count stays: one more failure within its hour cordons the node again.
void Reconciler::OpenHealthyNodes() {
  if (lease_.now() < next_opening_) return;
  next_opening_ = lease_.now() + kOpenEvery;
  const std::map<std::string, v1::Cordon> cordons = cordons_.All();
  for (auto it = healthy_since_.begin(); it != healthy_since_.end();)
    it = cordons.count(it->first) == 0 ? healthy_since_.erase(it) : std::next(it);
  for (const auto& [node, cordon] : cordons) {
    if (!OpensByItself(cordon)) continue;
    const Presence presence = PresenceAt(node);
    if (presence != Presence::kConnected) {
      healthy_since_.erase(node);
      if (presence != Presence::kExpected) healthy_before_.erase(node);
      continue;
    }
    const absl::Time since = healthy_since_.try_emplace(node, lease_.now()).first->second;
    if (lease_.now() - since < kHealthyFor) continue;
    const std::string why =
        absl::StrCat("its agent was connected for ", absl::FormatDuration(kHealthyFor), " without a break");
    if (!cordons_.Lift(node, parts_.clock->Wall(), why).ok()) {
      next_opening_ = lease_.now() + kFailedOpenPause;
      return;
    }
    LogInfo("a node is no longer cordoned node=%s: %s", node, why);
  }
}

// InfinitePast(): it is not healthy, or not cordoned.
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
  node->mutable_standing()->set_healthy_unix_nanos(absl::ToUnixNanos(parts_.clock->WallOf(healthy)));
}

void Reconciler::LoadStanding(const v1::Node& node) {
  const absl::Time now = parts_.clock->Now(), wall = parts_.clock->Wall();
  node_failures_.Load(node, now, wall);
  const v1::NodeStanding& standing = node.standing();
  if (standing.healthy_unix_nanos() == 0) return;
  const absl::Duration ago = wall - absl::FromUnixNanos(standing.healthy_unix_nanos());
  healthy_before_[node.name()] = {standing.agent_instance(), now - std::max(ago, absl::ZeroDuration())};
}

// The coordinator's own restart is no break of the agent's; that of the agent is.
void Reconciler::ResumeHealth(const std::string& node, const std::string& instance) {
  healthy_since_.erase(node);
  const auto before = healthy_before_.find(node);
  if (before == healthy_before_.end()) return;
  if (before->second.first == instance) healthy_since_[node] = before->second.second;
  healthy_before_.erase(before);
}

// What is judged without a person leaves at least half of the nodes of a kind that are there, or were a
// moment ago: a fault of all of them, or of what they have in common, is not cured by having none.
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

bool Reconciler::OthersFellSilentWith(const std::string& node) const {
  const auto its = views_.find(node);
  if (its == views_.end() || its->second.connected) return false;
  return std::any_of(views_.begin(), views_.end(), [&](const auto& each) {
    const absl::Duration apart = each.second.last_seen - its->second.last_seen;
    return each.first != node && !each.second.connected && absl::AbsDuration(apart) < kSameOutage;
  });
}

}  // namespace fsdpd
