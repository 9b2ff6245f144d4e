// What an instruction sends between ranks: the one answer for predicted times, for what ranks count, and for
// what metrics call it.
#pragma once

#include "fsdp/plan/program/program.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

enum class Pattern { kNone, kAllGather, kReduceScatter, kAllReduce, kSend, kReceive };

struct Traffic {
  Pattern pattern = Pattern::kNone;  // kNone: nothing leaves the rank, as in a group of one.
  // All parts together: what is gathered, what each rank brings to a sum, or what goes to the next stage.
  int64_t buffer_bytes = 0;
  int64_t received_bytes = 0;  // By one rank, as a ring does it: an all-reduce goes round twice.
  v1::CommOp counted_as = v1::COMM_OP_UNSPECIFIED;

  bool travels() const { return pattern != Pattern::kNone; }
};

Traffic TrafficOf(const Mesh& mesh, const Layout& layout, const Instruction& instruction);

// Likewise, of a unit's own exchange of `elements`, which is no instruction's.
int64_t ReceivedBytes(const Mesh& mesh, const UnitExchange& exchange, int64_t elements);

}  // namespace fsdpd
