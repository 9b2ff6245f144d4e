// Reduction of a job record that is too large for the store. Its longest texts are dropped, with a notice in
// their place. Retained are the spec, plan, placements, checkpoints and all fields that the coordinator's
// decisions depend on.
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
