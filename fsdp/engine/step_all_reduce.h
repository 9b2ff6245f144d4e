// Where things stand among the sums of a step (kStepAllReduceSize), and among what the host is told of it.
#pragma once

#include <limits>

#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

constexpr int kSquares = 0;
constexpr int kLossSum = 1;
constexpr int kCounted = 2;
constexpr int kAsks = 3;
constexpr int kExpertOverflow = 4;  // Rows of experts that a rank had no room for.
constexpr int kRouting = 5;         // The first of kRoutingSums.

constexpr int kFirstRouting = 11;
constexpr int kFirstFp8 = kFirstRouting + kRoutingSums;
constexpr int kResults = kFirstFp8 + kFp8Told;

// In the place of a norm: of a step that was skipped, or that is not known.
constexpr float kNoNorm = std::numeric_limits<float>::quiet_NaN();

}  // namespace fsdpd
