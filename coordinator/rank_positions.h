// Where the ranks of a job stand that makes no step, as a person wants it: ranks that wait at the same place
// are one entry, so that of a thousand the one that stands elsewhere is seen. Pure.
#pragma once

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr int kMaxStands = 32;              // A hang has few places; more are ranks that run.
constexpr size_t kMaxStandBytes = 2 << 10;  // What agent.proto allows.

// A rank's newest word replaces an older one, which goes even where the new one has no place left. False when
// nothing has changed.
bool TakeStand(int rank, const std::string& where, v1::Job* job);

}  // namespace fsdpd
