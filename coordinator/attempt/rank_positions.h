// Positions of the ranks of a job that makes no progress. Ranks that are blocked at the same place share one
// entry, so that one rank at another place among a thousand is visible. Pure.
#pragma once

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr int kMaxPositions = 32;           // A hang has few places; more means that ranks are running.
constexpr size_t kMaxStandBytes = 2 << 10;  // The limit of agent.proto.

// Records a rank's position in `job` and removes its previous one, even if the limit leaves no space for the
// new one. Returns false if nothing changed.
bool TakePosition(int rank, const std::string& where, v1::Job* job);

}  // namespace fsdpd
