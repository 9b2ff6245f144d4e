#include "coordinator/attempt_nodes.h"

#include <algorithm>
#include <set>

#include "coordinator/job_machine.h"

namespace fsdpd {

std::vector<std::string> NodesOf(const v1::Job& job, int32_t attempt, int32_t rank,
                                 const std::vector<NodeView>& all) {
  std::set<std::string> nodes;
  if (attempt == job.attempt()) {
    for (const v1::Job::Placement& p : job.placements()) {
      if (rank < 0 || (rank >= p.first_rank() && rank < p.first_rank() + p.ranks())) nodes.insert(p.node());
    }
  } else {
    for (const NodeView& view : all) {
      if (view.connected) nodes.insert(view.info.node());
    }
  }
  return {nodes.begin(), nodes.end()};
}

std::vector<std::string> NodesAwayOf(const v1::Job& job, int32_t attempt, const std::vector<NodeView>& all) {
  std::set<std::string> away;
  for (const NodeView& view : all) {
    if (!view.connected) away.insert(view.info.node());
  }
  for (const v1::Job::FailedAttempt& failed : job.failed_attempts()) {
    if (failed.attempt() != attempt || failed.node().empty()) continue;
    const bool connected = std::any_of(all.begin(), all.end(), [&](const NodeView& view) {
      return view.connected && view.info.node() == failed.node();
    });
    if (!connected) return {failed.node()};
  }
  return {away.begin(), away.end()};
}

bool AttemptIsOver(const v1::Job& job, int32_t attempt) {
  return !HasAttempt(job.state()) || job.attempt() != attempt;
}

}  // namespace fsdpd
