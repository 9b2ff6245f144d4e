#include "coordinator/nodes/cordons.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/check.h"

namespace fsdpd {

bool ExpiresAutomatically(const v1::Cordon& cordon) {
  return cordon.for_failed_attempts() && !cordon.has_drain();
}

std::string ShownReason(const v1::Cordon& cordon) {
  if (!ExpiresAutomatically(cordon)) return cordon.reason();
  return absl::StrCat(cordon.reason(), "; lifted after ", absl::FormatDuration(kHealthyFor), " connected");
}

namespace {

v1::Event NodeEvent(const std::string& node, v1::EventKind kind, int64_t unix_nanos,
                    const std::string& message) {
  v1::Event event;
  event.set_node(node);
  event.set_kind(kind);
  event.set_unix_nanos(unix_nanos);
  event.set_message(message);
  return event;
}

v1::Event EventOf(const std::string& node, const v1::Cordon& cordon, const v1::Cordon& before) {
  const v1::Cordon::Drain& drain = cordon.drain();
  const bool same = drain.SerializeAsString() == before.drain().SerializeAsString();
  if (same) return NodeEvent(node, v1::EVENT_KIND_CORDONED, cordon.unix_nanos(), ShownReason(cordon));
  if (drain.empty_unix_nanos() > 0)
    return NodeEvent(node, v1::EVENT_KIND_NODE_DRAINED, drain.empty_unix_nanos(),
                     "no job has processes on the node any more");
  return NodeEvent(node, v1::EVENT_KIND_DRAINING, drain.unix_nanos(), cordon.reason());
}

}  // namespace

absl::Status Cordons::Store(const std::string& node, const v1::Cordon& cordon) {
  // While a cordon is only held in memory (HoldUnstored), the stored one may already be equal: then nothing
  // is written, and no event repeats it.
  const std::optional<v1::Cordon> behind = StoredBehind(node);
  if (behind.has_value() && behind->SerializeAsString() == cordon.SerializeAsString())
    return absl::OkStatus();
  const v1::Cordon before = behind.has_value() ? *behind : Find(node).value_or(v1::Cordon());
  return store_->SetCordon(node, cordon, {EventOf(node, cordon, before)});
}

absl::Status Cordons::Load() {
  FSDPD_ASSIGN_OR_RETURN(auto stored, store_->Cordons());
  MutexLock lock(&mutex_);
  cordons_ = std::move(stored);
  return absl::OkStatus();
}

absl::Status Cordons::CheckCapacity(const std::string& node) const {
  MutexLock lock(&mutex_);
  if (cordons_.size() < kMaxCordons || cordons_.count(node) != 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      kMaxCordons, " nodes are cordoned, which is the limit; uncordon nodes that no longer exist"));
}

absl::Status Cordons::Set(const std::string& node, const v1::Cordon& cordon) {
  FSDPD_RETURN_IF_ERROR(CheckCapacity(node));
  FSDPD_RETURN_IF_ERROR(Store(node, cordon));
  unsaved_.erase(node);
  stored_behind_.erase(node);
  MutexLock lock(&mutex_);
  cordons_[node] = cordon;
  return absl::OkStatus();
}

absl::Status Cordons::Lift(const std::string& node, absl::Time now, const std::string& why) {
  const v1::Event news = NodeEvent(node, v1::EVENT_KIND_UNCORDONED, absl::ToUnixNanos(now), why);
  FSDPD_RETURN_IF_ERROR(store_->RemoveCordon(node, {news}));
  unsaved_.erase(node);
  stored_behind_.erase(node);
  MutexLock lock(&mutex_);
  cordons_.erase(node);
  return absl::OkStatus();
}

void Cordons::SetUnstored(const std::string& node, const v1::Cordon& cordon) {
  if (!CheckCapacity(node).ok() || Set(node, cordon).ok()) return;
  unsaved_[node] = cordon;
  MutexLock lock(&mutex_);
  cordons_[node] = cordon;
}

void Cordons::HoldUnstored(const std::string& node, const v1::Cordon& cordon) {
  if (const std::optional<v1::Cordon> known = Find(node); known.has_value())
    stored_behind_.emplace(node, *known);
  MutexLock lock(&mutex_);
  cordons_[node] = cordon;
}

std::optional<v1::Cordon> Cordons::StoredBehind(const std::string& node) const {
  const auto it = stored_behind_.find(node);
  return it == stored_behind_.end() ? std::nullopt : std::optional(it->second);
}

void Cordons::SaveRest() {
  while (!unsaved_.empty() && Store(unsaved_.begin()->first, unsaved_.begin()->second).ok())
    unsaved_.erase(unsaved_.begin());
}

std::optional<v1::Cordon> Cordons::Find(const std::string& node) const {
  MutexLock lock(&mutex_);
  const auto it = cordons_.find(node);
  return it == cordons_.end() ? std::nullopt : std::optional(it->second);
}

std::map<std::string, v1::Cordon> Cordons::All() const {
  MutexLock lock(&mutex_);
  return cordons_;
}

void Cordons::MarkIn(std::vector<NodeSlots>* slots) const {
  MutexLock lock(&mutex_);
  for (NodeSlots& node : *slots) {
    const auto it = cordons_.find(node.name);
    if (it != cordons_.end()) node.cordon = ShownReason(it->second);
  }
}

}  // namespace fsdpd
