#include "coordinator/nodes/node_registry.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/text.h"
#include "coordinator/schedule/job_labels.h"

namespace fsdpd {
namespace {

// Bits for the streams of one process of the coordinator; the store's generation is above them.
constexpr int kStreamBits = 32;
constexpr int kMaxSlots = 1024;

absl::Status CheckInfo(const v1::Register& info) {
  if (const absl::Status name = CheckNodeName(info.node()); !name.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.node: '", absl::CHexEscape(CutText(info.node(), 64)), "' ", name.message()));
  }
  if (info.device() != v1::DEVICE_CPU && info.device() != v1::DEVICE_CUDA) {
    return absl::InvalidArgumentError("register.device: must be cpu or cuda");
  }
  if (info.slots() < 1 || info.slots() > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.slots: must be 1 to ", kMaxSlots, " (got ", info.slots(), ")"));
  }
  if (info.instance().empty()) return absl::InvalidArgumentError("register.instance: is empty");
  if (const absl::Status labels = CheckedLabels(info.labels()).status(); !labels.ok())
    return absl::InvalidArgumentError(absl::StrCat("register.labels: ", labels.message()));
  if (const absl::Status domain = CheckLabelValue(info.nvlink_domain()); !domain.ok())
    return absl::InvalidArgumentError(absl::StrCat("register.nvlink_domain: ", domain.message()));
  return absl::OkStatus();
}

v1::CoordinatorMessage WelcomeMessage() {
  v1::CoordinatorMessage message;
  message.mutable_welcome()->set_heartbeat_interval_ms(kHeartbeatIntervalMs);
  return message;
}

}  // namespace

absl::Status NodeRegistry::CheckAdmissible(const v1::Register& info) const {
  const auto it = nodes_.find(info.node());
  if (it == nodes_.end()) {
    if (nodes_.size() < kMaxNodes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("register.node: too many nodes (got ", nodes_.size() + 1,
                                                     ", want at most ", kMaxNodes,
                                                     "); remove lost nodes with `fsdpctl node delete`"));
  }
  const NodeView& known = it->second.view;
  if (!known.connected || known.info.instance() == info.instance()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("register.node: '", info.node(),
                                               "' is already used by the agent at ", known.address,
                                               "; use another --node, or stop that agent"));
}

absl::StatusOr<std::shared_ptr<StreamOutbox>> NodeRegistry::Attach(const v1::Register& info,
                                                                   const std::string& address,
                                                                   std::function<void()> end_stream) {
  FSDPD_RETURN_IF_ERROR(CheckInfo(info));
  std::shared_ptr<StreamOutbox> replaced, outbox;
  {
    MutexLock lock(&mutex_);
    FSDPD_RETURN_IF_ERROR(CheckAdmissible(info));
    Node& node = nodes_[info.node()];
    replaced = node.outbox;
    // The store increments generation_ at each start, so generations of streams increase across restarts.
    outbox = std::make_shared<StreamOutbox>((generation_ << kStreamBits) + ++streams_, std::move(end_stream));
    outbox->Push(WelcomeMessage());
    node.outbox = outbox;
    node.view = {info, address, true, outbox->stream_generation(), clock_->Now(), 0, false, false, {}, ""};
  }
  if (replaced != nullptr) replaced->Close();
  return outbox;
}

bool NodeRegistry::Detach(const std::string& node, int64_t stream_generation, bool left) {
  MutexLock lock(&mutex_);
  const auto it = nodes_.find(node);
  if (it == nodes_.end() || it->second.view.stream_generation != stream_generation) return false;
  it->second.view.connected = false;
  it->second.view.left = left;
  it->second.view.awaited = !left;
  it->second.outbox = nullptr;
  return true;
}

void NodeRegistry::Restore(const NodeView& view) {
  MutexLock lock(&mutex_);
  if (nodes_.size() >= kMaxNodes) return;
  const auto [it, added] = nodes_.try_emplace(view.info.node(), Node{view, nullptr});
  if (added) it->second.view.awaited = !view.left;
}

void NodeRegistry::Touch(const std::string& node, int64_t stream_generation) {
  MutexLock lock(&mutex_);
  const auto it = nodes_.find(node);
  if (it != nodes_.end() && it->second.view.stream_generation == stream_generation)
    it->second.view.last_seen = clock_->Now();
}

void NodeRegistry::EndSilentStreams(const AgentLease& lease) {
  std::vector<std::shared_ptr<StreamOutbox>> silent;
  {
    MutexLock lock(&mutex_);
    for (auto& [name, node] : nodes_) {
      if (!lease.Expired(node.view.last_seen)) continue;
      node.view.awaited = false;
      if (node.outbox == nullptr) continue;
      node.view.connected = false;
      silent.push_back(std::move(node.outbox));
      node.outbox = nullptr;
    }
  }
  for (const auto& outbox : silent) outbox->Close();
}

std::vector<std::string> NodeRegistry::ForgetLost(const AgentLease& lease, HasEnded has_ended) {
  MutexLock lock(&mutex_);
  std::vector<std::pair<absl::Time, std::string>> lost, held;  // `held`: by jobs that have not ended.
  for (const auto& [name, node] : nodes_) {
    if (node.outbox != nullptr || !lease.Expired(node.view.last_seen)) continue;
    const std::vector<std::string>& jobs = node.view.unconfirmed_jobs;
    const bool ended = std::all_of(jobs.begin(), jobs.end(), has_ended);
    (ended ? lost : held).emplace_back(node.view.last_seen, name);
  }
  std::sort(lost.begin(), lost.end());
  std::vector<std::string> forgotten;
  for (const auto& [last_seen, name] : lost) {
    const bool crowded = lost.size() - forgotten.size() > kMaxLostNodes;
    if (!crowded && lease.now() - last_seen <= kLostNodeRetention) break;
    nodes_.erase(name);
    forgotten.push_back(name);
  }
  // Otherwise clusters with single-use names, such as spot instances, would eventually reach kMaxNodes and
  // new agents would be rejected.
  std::sort(held.begin(), held.end());
  for (size_t i = 0; i + kMaxLostNodes < held.size(); ++i) {
    nodes_.erase(held[i].second);
    forgotten.push_back(held[i].second);
  }
  return forgotten;
}

bool NodeRegistry::Forget(const std::string& node) {
  MutexLock lock(&mutex_);
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) return true;
  if (it->second.outbox != nullptr) return false;
  nodes_.erase(it);
  return true;
}

bool NodeRegistry::Send(const std::string& node, v1::CoordinatorMessage message, int64_t stream_generation) {
  std::shared_ptr<StreamOutbox> outbox;
  {
    MutexLock lock(&mutex_);
    const auto it = nodes_.find(node);
    if (it != nodes_.end()) outbox = it->second.outbox;
  }
  if (outbox == nullptr || (stream_generation != 0 && outbox->stream_generation() != stream_generation))
    return false;
  return outbox->Push(std::move(message));
}

bool NodeRegistry::HasLogWindows(const std::string& node) const {
  MutexLock lock(&mutex_);
  const auto it = nodes_.find(node);
  return it != nodes_.end() && it->second.outbox != nullptr && it->second.view.info.log_windows();
}

bool NodeRegistry::AcknowledgesLaunches(const std::string& node) const {
  MutexLock lock(&mutex_);
  const auto it = nodes_.find(node);
  return it != nodes_.end() && it->second.view.info.acknowledges_launches();
}

void NodeRegistry::AddUnconfirmed(const std::string& node, const std::string& job, HasEnded has_ended) {
  MutexLock lock(&mutex_);
  const auto it = nodes_.find(node);
  if (it == nodes_.end() || it->second.outbox != nullptr) return;
  std::vector<std::string>& jobs = it->second.view.unconfirmed_jobs;
  if (std::find(jobs.begin(), jobs.end(), job) != jobs.end()) return;
  jobs.push_back(job);
  for (auto old = jobs.begin(); old != jobs.end() && jobs.size() > kMaxUnconfirmedJobs;)
    old = has_ended(*old) ? jobs.erase(old) : std::next(old);
}

void NodeRegistry::SetRevoked(const std::string& node, int64_t stream_generation, const std::string& serial) {
  MutexLock lock(&mutex_);
  const auto it = nodes_.find(node);
  if (it == nodes_.end() ||
      (it->second.outbox != nullptr && it->second.view.stream_generation != stream_generation))
    return;
  it->second.view.revoked_serial = serial;
}

void NodeRegistry::SetFreeSlots(const std::map<std::string, int>& free_slots) {
  MutexLock lock(&mutex_);
  for (auto& [name, node] : nodes_) {
    const auto it = free_slots.find(name);
    node.view.free_slots = it == free_slots.end() ? 0 : it->second;
  }
}

void NodeRegistry::ReadInto(std::map<std::string, NodeView>* views) const {
  MutexLock lock(&mutex_);
  auto it = views->begin();  // Both are sorted by name.
  for (const auto& [name, node] : nodes_) {
    while (it != views->end() && it->first < name) it = views->erase(it);
    if (it == views->end() || it->first != name) {
      it = std::next(views->emplace_hint(it, name, node.view));
      continue;
    }
    NodeView& view = it->second;
    if (view.stream_generation != node.view.stream_generation) {
      view = node.view;
    } else {
      view.connected = node.view.connected;
      view.last_seen = node.view.last_seen;
      view.free_slots = node.view.free_slots;
      view.left = node.view.left;
      view.awaited = node.view.awaited;
      view.unconfirmed_jobs = node.view.unconfirmed_jobs;
      view.revoked_serial = node.view.revoked_serial;
    }
    ++it;
  }
  views->erase(it, views->end());
}

std::vector<NodeView> NodeRegistry::Snapshot() const {
  MutexLock lock(&mutex_);
  std::vector<NodeView> views;
  for (const auto& [name, node] : nodes_) views.push_back(node.view);
  return views;
}

}  // namespace fsdpd
