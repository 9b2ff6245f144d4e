// Bounds of what a call of the public API may ask: the coordinator refuses what is beyond, and fsdpctl says
// so before it asks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdpd {

constexpr size_t kMaxReasonBytes = 1024;  // A sentence, kept with a job's events or a node's cordon.
constexpr int kMaxGraceSeconds = 3600;    // A save that takes longer is a fault of the disk.
// Above it an agent searches its whole log for the beginning: without tail_lines it is sent as fast.
constexpr int kMaxTailLines = 100'000;

}  // namespace fsdpd
