#include "fsdp/engine/save_schedule.h"

namespace fsdpd {

bool SaveSchedule::Asks(absl::Time now) const {
  const int64_t minutes = spec_->checkpoint.every_minutes;
  return keeps_time_ && minutes > 0 && now - newest_at_ >= absl::Minutes(minutes);
}

void SaveSchedule::Submitted(int64_t step, bool saves, absl::Time now) {
  if (!saves) return;
  wanted_ = false;
  newest_ = step;
  newest_at_ = now;
}

}  // namespace fsdpd
