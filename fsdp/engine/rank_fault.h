// What a rank's error is the fault of, where that is known: said where a file is opened or a device asked
// for, and carried by the error to who tells the agent. A thread or a file that a limit does not allow is
// the node's, as a process that is not started is. Where there was no memory the code says it. Any other
// error that nobody marks is the rank's own.
//
// Codes say which errors are of what a file is or holds: a peer that left, a wait that took too long, a disk
// that failed are none of them. Only what a file holds is for ever, and only where all ranks have seen it so:
// one that is missing may be missing on one node, or come back.
//
// Thread safety: pure.
#pragma once

#include <absl/status/status.h>

#include <optional>

#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// The same error, marked. OK stays OK, and what was marked before keeps that.
absl::Status BlamedOn(v1::RankFault::Kind kind, bool permanent, const absl::Status& status);

// An error of a file, or of what it holds, is marked with `kind`; others are not. `by_all`: every rank has
// the same error, so that what a file holds is the fault for ever.
absl::Status BlamedOnFile(v1::RankFault::Kind kind, bool by_all, const absl::Status& status);

// What another node may accept: one with other hardware, another build of fsdpd-rank, or other files.
absl::Status RefusedByNode(v1::RankFault::Kind kind, const absl::Status& status);

// An error of a file, or of what it holds, that some ranks have and others do not, such as a mount that is
// late on one node; other errors are not marked.
absl::Status BlamedOnNodesFile(v1::RankFault::Kind kind, const absl::Status& status);

// What the error was marked with, though it went through Annotated() (bad_step.h).
std::optional<v1::RankFault> FaultOf(const absl::Status& status);

}  // namespace fsdpd
