#include "coordinator/course_board.h"

#include <memory>
#include <utility>

namespace fsdpd {
void CourseBoard::Take(const v1::RankUpdate& update) {
  const std::shared_ptr<const v1::Job> job = jobs_->Find(update.job_id());
  if (job == nullptr || job->attempt() != update.attempt() || update.rank() != 0) return;
  v1::GetStepCourseResponse told;
  *told.mutable_course() = update.course();
  told.set_attempt(update.attempt());
  std::string bytes = told.SerializeAsString();
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > kMaxCourseBytes) return;
  MutexLock lock(&mutex_);
  Drop(update.job_id());
  while (!turns_.empty() && bytes_ + size > max_bytes_) Drop(std::string(turns_.begin()->second));
  bytes_ += size;
  turns_[++last_turn_] = update.job_id();
  kept_[update.job_id()] = {std::move(bytes), last_turn_};
}

void CourseBoard::Drop(const std::string& job_id) {
  const auto kept = kept_.find(job_id);
  if (kept == kept_.end()) return;
  bytes_ -= static_cast<int64_t>(kept->second.bytes.size());
  turns_.erase(kept->second.turn);
  kept_.erase(kept);
}

std::optional<v1::GetStepCourseResponse> CourseBoard::Find(const std::string& job_id) const {
  std::string bytes;
  {
    MutexLock lock(&mutex_);
    const auto kept = kept_.find(job_id);
    if (kept == kept_.end()) return std::nullopt;
    bytes = kept->second.bytes;
  }
  v1::GetStepCourseResponse told;
  if (!told.ParseFromString(bytes)) return std::nullopt;  // Never: it was written here.
  return told;
}

}  // namespace fsdpd
