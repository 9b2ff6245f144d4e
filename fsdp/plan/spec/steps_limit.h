// Maximum number of steps of a job.
#pragma once

#include <cstdint>

namespace fsdpd {

constexpr int64_t kMaxSteps = 1'000'000'000;

}  // namespace fsdpd
