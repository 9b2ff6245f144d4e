// Limits of calls of the public API. The coordinator rejects calls beyond them, and fsdpctl reports that
// before it makes the call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdpd {

constexpr size_t kMaxReasonBytes = 1024;  // Stored with events of a job or the cordon of a node.
constexpr int kMaxGraceSeconds = 3600;    // A save that takes longer indicates a broken disk.
// For more lines, an agent would search the whole log for the start: reading without tail_lines is as fast.
constexpr int kMaxTailLines = 100'000;

}  // namespace fsdpd
