// Communication volume of an instruction. Single source for predicted times, measured byte counts and metric
// labels.
#pragma once

#include "fsdp/plan/program/program.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

enum class Pattern { kNone, kAllGather, kReduceScatter, kAllReduce, kSend, kReceive };

struct Traffic {
  Pattern pattern = Pattern::kNone;  // kNone: no communication, e.g. a group of one rank.
  // All parts together: the gathered buffer, each rank's input of a reduction, or the message to the next
  // stage.
  int64_t buffer_bytes = 0;
  int64_t received_bytes = 0;  // Received by one rank with ring algorithms: an all-reduce counts twice.
  v1::CommOp counted_as = v1::COMM_OP_UNSPECIFIED;

  bool communicates() const { return pattern != Pattern::kNone; }
};

Traffic TrafficOf(const Mesh& mesh, const Layout& layout, const Instruction& instruction);

// The same for a unit's exchange of `elements`, which is part of its forward or backward.
int64_t ReceivedBytes(const Mesh& mesh, const UnitExchange& exchange, int64_t elements);

}  // namespace fsdpd
