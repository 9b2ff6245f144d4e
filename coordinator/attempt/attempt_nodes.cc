#include "coordinator/attempt/attempt_nodes.h"

#include <algorithm>
#include <set>

#include "coordinator/attempt/attempt_hosts.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

// The node that ran the whole attempt, from its start event (Job.Event.node); "" if it had several, or the
// event is no longer retained.
std::string OnlyNodeOf(const v1::Job& job, int32_t attempt) {
  for (const v1::Job::Event& event : job.events()) {
    if (event.kind() == v1::EVENT_KIND_LAUNCHED && event.attempt() == attempt) return event.node();
  }
  return "";
}

// An older attempt ran on a node only if the record lists it, unless the record is incomplete: older releases
// stored no hosts, and the oldest of many are dropped. Other nodes could return forged lines.
bool MayHaveHosted(const v1::Job& job, int32_t attempt, const std::string& node) {
  const int known = job.earlier_hosts_size();
  if (known == 0 || known >= kMaxEarlierHosts) return true;
  return HostingOf(job, node, attempt, job.attempt()) == Hosting::kPlaced;
}

bool IsConnected(const std::string& node, const std::vector<NodeView>& all) {
  return std::any_of(all.begin(), all.end(),
                     [&](const NodeView& view) { return view.connected && view.info.node() == node; });
}

}  // namespace

std::vector<std::string> NodesOf(const v1::Job& job, int32_t attempt, int32_t rank,
                                 const std::vector<NodeView>& all) {
  std::set<std::string> nodes;
  if (attempt == job.attempt()) {
    for (const v1::Job::Placement& p : job.placements()) {
      if (rank < 0 || (rank >= p.first_rank() && rank < p.first_rank() + p.ranks())) nodes.insert(p.node());
    }
  } else {
    for (const NodeView& view : all) {
      if (view.connected && MayHaveHosted(job, attempt, view.info.node())) nodes.insert(view.info.node());
    }
  }
  return {nodes.begin(), nodes.end()};
}

std::vector<v1::Job::Placement> PlacementsOf(const v1::Job& job, int32_t attempt) {
  if (attempt != job.attempt()) return {};
  return {job.placements().begin(), job.placements().end()};
}

std::vector<std::string> NodesWithSteps(const v1::Job& job, std::optional<int32_t> attempt,
                                        const std::vector<NodeView>& all) {
  std::set<std::string> nodes;
  if (attempt.value_or(job.attempt()) == job.attempt()) {
    for (const std::string& node : NodesOf(job, job.attempt(), /*rank=*/0, all)) nodes.insert(node);
  }
  const int32_t last = std::min(attempt.value_or(job.attempt()), job.attempt() - 1);
  for (int32_t older = attempt.value_or(1); older <= last; ++older) {
    const std::string only = OnlyNodeOf(job, older);
    if (!only.empty()) {
      nodes.insert(only);
      continue;
    }
    for (const NodeView& view : all) {
      if (MayHaveHosted(job, older, view.info.node())) nodes.insert(view.info.node());
    }
    break;
  }
  return {nodes.begin(), nodes.end()};
}

bool MayHaveSteps(const v1::Job& job, int32_t attempt, const std::string& node) {
  if (attempt == job.attempt()) {
    const auto& parts = job.placements();
    return std::any_of(parts.begin(), parts.end(), [&](const v1::Job::Placement& part) {
      return part.first_rank() == 0 && part.node() == node;
    });
  }
  const std::string only = OnlyNodeOf(job, attempt);
  return only.empty() ? MayHaveHosted(job, attempt, node) : node == only;
}

std::vector<std::string> DisconnectedNodesOf(const v1::Job& job, int32_t attempt,
                                             const std::vector<NodeView>& all) {
  if (const std::string only = OnlyNodeOf(job, attempt); !only.empty()) {
    return IsConnected(only, all) ? std::vector<std::string>() : std::vector<std::string>{only};
  }
  std::set<std::string> disconnected;
  for (const NodeView& view : all) {
    if (!view.connected) disconnected.insert(view.info.node());
  }
  for (const v1::Job::FailedAttempt& failed : job.failed_attempts()) {
    if (failed.attempt() != attempt || failed.node().empty()) continue;
    if (!IsConnected(failed.node(), all)) return {failed.node()};
  }
  return {disconnected.begin(), disconnected.end()};
}

bool AttemptIsOver(const v1::Job& job, int32_t attempt) {
  return !HasAttempt(job.state()) || job.attempt() != attempt;
}

}  // namespace fsdpd
