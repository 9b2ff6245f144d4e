#include "coordinator/reconcile/node_presence.h"

#include <algorithm>

namespace fsdpd {

const NodeView* NodePresence::Find(const std::string& node) const {
  const auto it = views_.find(node);
  return it == views_.end() ? nullptr : &it->second;
}

Presence NodePresence::Of(const std::string& node) const {
  const NodeView* view = Find(node);
  if (view != nullptr && view->connected) return Presence::kConnected;
  const absl::Time heard = view == nullptr ? absl::InfinitePast() : view->last_seen;
  if (lease_.Expected(heard)) return Presence::kExpected;
  return lease_.Expired(heard) ? Presence::kLost : Presence::kDisconnected;
}

bool NodePresence::HasReported(const NodeView& view) const {
  const auto it = attached_.find(view.info.node());
  return view.connected && it != attached_.end() && it->second == view.stream_generation;
}

std::vector<std::string> NodePresence::LostWithRanksOf(const std::string& job) const {
  std::vector<std::string> lost;
  for (const auto& [name, view] : views_) {
    const std::vector<std::string>& jobs = view.unconfirmed_jobs;
    if (std::find(jobs.begin(), jobs.end(), job) != jobs.end()) lost.push_back(name);
  }
  return lost;
}

}  // namespace fsdpd
