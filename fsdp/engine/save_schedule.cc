#include "fsdp/engine/save_schedule.h"

#include <algorithm>

namespace fsdpd {

bool SaveSchedule::RequestsSave(absl::Time now) const {
  const int64_t minutes = spec_->checkpoint.every_minutes;
  return keeps_time_ && minutes > 0 && now - newest_at_ >= absl::Minutes(minutes);
}

int64_t SaveSchedule::StepsToSave(int64_t next_step, int64_t steps) const {
  return asked_ == 0 ? steps : std::max<int64_t>(1, steps - (next_step - asked_));
}

void SaveSchedule::Submitted(int64_t step, bool saves, bool requests_save, absl::Time now) {
  if (!saves) {
    if (requests_save && asked_ == 0) asked_ = step;
    return;
  }
  asked_ = 0;
  wanted_ = false;
  newest_ = step;
  newest_at_ = now;
}

}  // namespace fsdpd
