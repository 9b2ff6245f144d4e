// A job record that is small enough for a store with a limit on the size of a request (etcd). A job that has
// outgrown the limit by its history must still be able to end, so its diagnostics are dropped step by step:
//
//   kWithoutLogs   the log lines of its failure
//   kShortTexts    also positions of ranks, and of each diagnostic text all but kShortTextBytes
//
// A notice in the record states what was dropped. Spec, plan, placements, checkpoints and everything that the
// coordinator decides by are kept.
//
// Pure.
#pragma once

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

enum class RecordSize { kWhole, kWithoutLogs, kShortTexts };

constexpr size_t kShortTextBytes = 512;

// REQUIRES: `size` is not kWhole.
v1::Job SmallRecord(v1::Job job, RecordSize size);

}  // namespace fsdpd
