#include "coordinator/agents/timeline_board.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace fsdpd {
namespace {

// Twice what a rank sends (fsdp/telemetry/timeline_report.h). An empty entry takes 2 bytes in a message, and
// about 50 in memory.
constexpr int kMaxRuns = 8192, kMaxSamples = 2048, kMaxComponents = 64;

bool HasTooManyEntries(const v1::StepTimeline& timeline) {
  const auto too_long = [](const v1::StepTimeline::MemorySample& sample) {
    return sample.bytes_size() > kMaxComponents;
  };
  return timeline.runs_size() > kMaxRuns || timeline.components_size() > kMaxComponents ||
         timeline.memory_size() > kMaxSamples ||
         std::any_of(timeline.memory().begin(), timeline.memory().end(), too_long);
}

}  // namespace

void TimelineBoard::Take(const v1::RankUpdate& update) {
  const std::shared_ptr<const v1::Job> job = jobs_->Find(update.job_id());
  if (job == nullptr || job->attempt() != update.attempt() || update.rank() != 0) return;
  if (HasTooManyEntries(update.timeline())) return;
  v1::GetStepTimelineResponse response;
  *response.mutable_timeline() = update.timeline();
  response.set_attempt(update.attempt());
  std::string bytes = response.SerializeAsString();
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > kMaxTimelineBytes) return;
  MutexLock lock(&mutex_);
  Drop(update.job_id());
  while (!turns_.empty() && bytes_ + size > max_bytes_) Drop(std::string(turns_.begin()->second));
  bytes_ += size;
  turns_[++last_turn_] = update.job_id();
  entries_[update.job_id()] = {std::move(bytes), last_turn_};
}

void TimelineBoard::Drop(const std::string& job_id) {
  const auto found = entries_.find(job_id);
  if (found == entries_.end()) return;
  bytes_ -= static_cast<int64_t>(found->second.bytes.size());
  turns_.erase(found->second.turn);
  entries_.erase(found);
}

std::optional<v1::GetStepTimelineResponse> TimelineBoard::Find(const std::string& job_id) const {
  std::string bytes;
  {
    MutexLock lock(&mutex_);
    const auto found = entries_.find(job_id);
    if (found == entries_.end()) return std::nullopt;
    bytes = found->second.bytes;
  }
  v1::GetStepTimelineResponse response;
  if (!response.ParseFromString(bytes)) return std::nullopt;  // Cannot happen: serialized by Take().
  return response;
}

}  // namespace fsdpd
