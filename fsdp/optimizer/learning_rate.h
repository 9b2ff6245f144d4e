// Learning-rate schedules. Pure.
//
// Steps count from 1. Warm-up rises linearly and reaches the peak at step `warmup_steps`. All shapes but
// constant decay to min_lr_ratio * peak at the last step: cosine and linear from the end of warm-up; WSD
// (warm-up, stable, decay) linearly over the last `decay_steps`. A decay that is longer than the steps after
// warm-up starts where warm-up ends.
//
// With min_lr_ratio 0 the last step has rate 0 and changes nothing; the plan reports this if it is the
// default. It cannot be changed: decaying over one more step would change every rate of every existing job.
#pragma once

#include <cstdint>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

double LearningRate(const ScheduleConfig& schedule, double peak, int64_t steps, int64_t step);

}  // namespace fsdpd
