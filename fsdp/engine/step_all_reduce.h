// Indexes into the vector that a step all-reduces (kStepAllReduceSize), and into the result for the host.
#pragma once

#include <limits>

#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

constexpr int kSquares = 0;
constexpr int kLossSum = 1;
constexpr int kCounted = 2;
constexpr int kSaveRequests = 3;
constexpr int kExpertOverflow = 4;  // Number of tokens beyond the expert capacity.
constexpr int kRouting = 5;         // First of kRoutingSums.

constexpr int kFirstRouting = 11;
constexpr int kFirstFp8 = kFirstRouting + kRoutingSums;
constexpr int kResults = kFirstFp8 + kFp8Statistics;

// Placeholder for the norm of a step that was skipped or is unknown.
constexpr float kNoNorm = std::numeric_limits<float>::quiet_NaN();

}  // namespace fsdpd
