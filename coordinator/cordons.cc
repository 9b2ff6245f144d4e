#include "coordinator/cordons.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/check.h"

namespace fsdpd {

absl::Status Cordons::Load() {
  FSDPD_ASSIGN_OR_RETURN(auto stored, store_->Cordons());
  MutexLock lock(&mutex_);
  cordons_ = std::move(stored);
  return absl::OkStatus();
}

absl::Status Cordons::CheckRoom(const std::string& node) const {
  MutexLock lock(&mutex_);
  if (cordons_.size() < kMaxCordons || cordons_.count(node) != 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(kMaxCordons, " nodes are cordoned: uncordon those that are no more"));
}

absl::Status Cordons::Set(const std::string& node, const v1::Cordon& cordon) {
  FSDPD_RETURN_IF_ERROR(CheckRoom(node));
  FSDPD_RETURN_IF_ERROR(store_->SetCordon(node, cordon));
  unsaved_.erase(node);
  MutexLock lock(&mutex_);
  cordons_[node] = cordon;
  return absl::OkStatus();
}

absl::Status Cordons::Lift(const std::string& node) {
  FSDPD_RETURN_IF_ERROR(store_->RemoveCordon(node));
  unsaved_.erase(node);
  MutexLock lock(&mutex_);
  cordons_.erase(node);
  return absl::OkStatus();
}

void Cordons::SetAnyway(const std::string& node, const v1::Cordon& cordon) {
  if (!CheckRoom(node).ok() || Set(node, cordon).ok()) return;
  unsaved_[node] = cordon;
  MutexLock lock(&mutex_);
  cordons_[node] = cordon;
}

void Cordons::SaveRest() {
  while (!unsaved_.empty() && store_->SetCordon(unsaved_.begin()->first, unsaved_.begin()->second).ok())
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
    if (it != cordons_.end()) node.cordon = it->second.reason();
  }
}

}  // namespace fsdpd
