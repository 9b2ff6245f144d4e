// The learning rate of each step. Pure.
//
// Steps count from 1. Warm-up rises linearly and reaches the peak at step `warmup_steps`. Every shape but the
// constant one falls to min_lr_ratio x peak at the last step: cosine and linear from the end of warm-up, WSD
// (warm-up, stable, decay) in a straight line over the last `decay_steps`, from the peak. A decay longer than
// what warm-up leaves starts where warm-up ends.
//
// With min_lr_ratio 0 the last step has rate 0 and changes nothing, which the plan says where that is the
// default. It stays so: to fall over one step more would change every rate of every job that there is.
#pragma once

#include <cstdint>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

double LearningRate(const ScheduleConfig& schedule, double peak, int64_t steps, int64_t step);

}  // namespace fsdpd
