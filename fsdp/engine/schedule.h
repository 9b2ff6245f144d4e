// The learning rate of each step. Pure.
//
// Steps count from 1. Warmup rises linearly and reaches the peak at step `warmup_steps`; cosine and linear
// then fall and reach min_lr_ratio x peak at the last step.
#pragma once

#include <cstdint>

#include "fsdp/plan/spec.h"

namespace fsdpd {

double LearningRate(const ScheduleConfig& schedule, double peak, int64_t steps, int64_t step);

}  // namespace fsdpd
