// StateStore decorator that records the duration and the status of each call (meters.h). Thread-safe if the
// wrapped store is.
#pragma once

#include <memory>

#include "coordinator/metrics/meters.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

// `meters` outlives the store.
std::unique_ptr<StateStore> Measured(std::unique_ptr<StateStore> store, Meters* meters);

}  // namespace fsdpd
