#include "coordinator/nodes/preflights.h"

#include <utility>

#include "base/text.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxWordsBytes = 4096;
// A node of 8 devices needs about 2,000 bytes; one of 128, with all pairs, about 220,000.
constexpr size_t kMaxResultBytes = 256 << 10;

}  // namespace

void Preflights::Load(const v1::ListNodesResponse& nodes) {
  MutexLock lock(&mutex_);
  for (const v1::Node& node : nodes.nodes()) {
    if (!node.has_preflight()) continue;
    v1::NodePreflight& kept = results_[node.name()] = node.preflight();
    *kept.mutable_result() = CutToBounds(std::move(*kept.mutable_result()));
  }
}

void Preflights::Set(const std::string& node, v1::NodePreflight preflight) {
  MutexLock lock(&mutex_);
  results_[node] = std::move(preflight);
}

void Preflights::Accept(const std::string& node) {
  MutexLock lock(&mutex_);
  const auto it = results_.find(node);
  if (it != results_.end() && !it->second.violations().empty()) it->second.set_accepted(true);
}

void Preflights::Forget(const std::string& node) {
  MutexLock lock(&mutex_);
  results_.erase(node);
}

void Preflights::SetRunning(std::set<std::string> nodes) {
  MutexLock lock(&mutex_);
  running_ = std::move(nodes);
}

std::optional<v1::NodePreflight> Preflights::Find(const std::string& node) const {
  MutexLock lock(&mutex_);
  const auto it = results_.find(node);
  return it == results_.end() ? std::nullopt : std::optional(it->second);
}

Preflights::Version Preflights::VersionOf(const std::string& node) const {
  MutexLock lock(&mutex_);
  const auto it = results_.find(node);
  if (it == results_.end()) return {};
  return {it->second.unix_nanos(), it->second.accepted()};
}

void Preflights::MarkIn(v1::Node* node) const {
  MutexLock lock(&mutex_);
  const auto it = results_.find(node->name());
  if (it != results_.end()) *node->mutable_preflight() = it->second;
  node->set_in_preflight(running_.count(node->name()) != 0);
}

v1::PreflightResult CutToBounds(v1::PreflightResult result) {
  result.set_error(CutText(result.error(), kMaxWordsBytes));
  result.set_refused(CutText(result.refused(), kMaxWordsBytes));
  if (result.ByteSizeLong() <= kMaxResultBytes) return result;
  for (v1::PreflightDevice& device : *result.mutable_devices()) device.clear_pairs();
  if (result.ByteSizeLong() <= kMaxResultBytes) return result;
  result.clear_devices();
  result.set_error("the result is too large to store");
  return result;
}

bool Passed(const std::optional<v1::NodePreflight>& preflight, const v1::Register& info) {
  return preflight.has_value() && (preflight->violations().empty() || preflight->accepted()) &&
         preflight->device() == info.device() && preflight->slots() == info.slots();
}

bool Passes(const std::optional<v1::NodePreflight>& preflight, const v1::Register& info, absl::Time now) {
  // The date may have been set back since.
  const absl::Duration age =
      preflight.has_value() ? now - absl::FromUnixNanos(preflight->unix_nanos()) : absl::InfiniteDuration();
  return Passed(preflight, info) && absl::AbsDuration(age) < kPreflightMaxAge;
}

}  // namespace fsdpd
