// A store that tells how long another one took, and whether it could (meters.h). Thread-safe as that is.
#pragma once

#include <memory>
#include <utility>

#include "coordinator/meters.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

// `meters` outlives the store.
std::unique_ptr<StateStore> Measured(std::unique_ptr<StateStore> store, Meters* meters);

}  // namespace fsdpd
