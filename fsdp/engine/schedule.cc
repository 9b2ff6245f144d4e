#include "fsdp/engine/schedule.h"

#include <cmath>

namespace fsdpd {

double LearningRate(const ScheduleConfig& schedule, double peak, int64_t steps, int64_t step) {
  if (step < schedule.warmup_steps) return peak * static_cast<double>(step) / schedule.warmup_steps;
  if (schedule.shape == ScheduleShape::kConstant || steps <= schedule.warmup_steps) return peak;
  const double progress =
      static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(steps - schedule.warmup_steps);
  const double left =
      schedule.shape == ScheduleShape::kCosine ? 0.5 * (1 + std::cos(M_PI * progress)) : 1 - progress;
  return peak * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * left);
}

}  // namespace fsdpd
