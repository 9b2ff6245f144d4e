// Hang analysis: finds the rank that blocks all others when an attempt makes no progress. It is a pure
// comparison of rank positions, as agents see them from outside. A rank is in one of three states:
//
//   unresponsive  its process is stopped, has ended, or is in the kernel and does not return;
//   waits         it is inside an instruction that communicates, which some other rank has not started;
//   behind        neither: its position depends on no other rank. If others wait for it, it is the cause.
//
// A stopped rank is the cause: nothing else ends a wait for it. Otherwise the cause is the rank that does not
// wait and that most others wait for, or else an unresponsive rank. No rank is blamed if none waits (all are
// in the same collective, or at the same place outside one: the network or a file system is the cause), nor
// if all wait (they started collectives in different orders). The only rank of a job is its own cause.
//
// Instruction numbers are comparable between ranks of one pipeline stage only. Between two stages, a stage
// that computes nothing and is inside communication while it trains waits for a stage that is not in this
// state: activations that a stage receives ahead of their use block no stage that computes.
//
// Process groups of the mesh are unknown here: a rank whose own group is complete may be reported as waiting
// for a rank of another group. It is not the cause then, and the rank behind still is.
#pragma once

#include <string>
#include <vector>

#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct StalledRank {
  int rank = 0;
  bool ended = false;              // It exited with success, and `no_progress` is empty.
  v1::RankNoProgress no_progress;  // Has no_progress_ms above 0.
  int stage = 0;
};

struct HangCause {
  int rank = -1;
  std::string text;  // What it does, and which ranks wait for it in which instruction.
  v1::Job::Hang hang;
};

// REQUIRES: at least one rank has not ended.
HangCause FindHang(const std::vector<StalledRank>& ranks);

}  // namespace fsdpd
