#include "coordinator/reconcile/ended_jobs.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kForgetEvery = absl::Seconds(10);
// In one transaction, which must not delay a tick.
constexpr int kMaxForgotten = 256;
// Per tick, over all nodes: about 5 ms. 256 jobs of 2,000 nodes take 64 ticks.
constexpr size_t kMaxForgetsSent = 8192;

}  // namespace

void EndedJobs::ForgetOld() {
  if (parts_.presence->now() - forgotten_at_ < kForgetEvery || !to_forget_.empty()) return;
  forgotten_at_ = parts_.presence->now();
  const absl::StatusOr<std::vector<std::string>> forgotten =
      parts_.store->ForgetEnded(retention_, parts_.clock->Wall(), kMaxForgotten);
  if (!forgotten.ok()) return;  // Store error; the next write reports it.
  to_forget_.assign(forgotten->begin(), forgotten->end());
  if (forgotten->empty()) return;
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kAwaiting))
    parts_.jobs->At(id).ended_before.clear();
  LogInfo("old jobs deleted jobs=%d first=%s", forgotten->size(), forgotten->front());
}

// Agents that are away retain logs up to their own limits.
void EndedJobs::SendForgets() {
  const std::map<std::string, NodeView>& views = parts_.presence->views();
  size_t sent = 0;
  while (!to_forget_.empty() && sent < kMaxForgetsSent) {
    v1::CoordinatorMessage message;
    message.mutable_delete_job_files()->set_job_id(to_forget_.front());
    to_forget_.pop_front();
    for (const auto& [node, view] : views) {
      if (view.connected) parts_.nodes->Send(node, message);
    }
    sent += std::max<size_t>(1, views.size());
  }
}

}  // namespace fsdpd
