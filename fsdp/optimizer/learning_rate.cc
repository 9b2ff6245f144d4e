#include "fsdp/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace fsdpd {
namespace {

// The last step at the peak rate; decay starts after it.
int64_t LastPeakStep(const ScheduleConfig& schedule, int64_t steps) {
  if (schedule.shape == ScheduleShape::kConstant) return steps;
  if (schedule.shape != ScheduleShape::kWsd) return schedule.warmup_steps;
  return std::max(schedule.warmup_steps, steps - schedule.decay_steps);
}

}  // namespace

double LearningRate(const ScheduleConfig& schedule, double peak, int64_t steps, int64_t step) {
  FSDPD_CHECK(step >= 1);
  if (step < schedule.warmup_steps) return peak * static_cast<double>(step) / schedule.warmup_steps;
  const int64_t last_peak = LastPeakStep(schedule, steps);
  if (step <= last_peak || steps <= last_peak) return peak;
  const double progress =
      std::min(1.0, static_cast<double>(step - last_peak) / static_cast<double>(steps - last_peak));
  const double left =
      schedule.shape == ScheduleShape::kCosine ? 0.5 * (1 + std::cos(M_PI * progress)) : 1 - progress;
  return peak * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * left);
}

}  // namespace fsdpd
