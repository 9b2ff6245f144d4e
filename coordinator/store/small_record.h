// Reduction of a job record that is too large for the store: notices replace its longest texts. All fields
// that the coordinator's decisions depend on are retained.
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
