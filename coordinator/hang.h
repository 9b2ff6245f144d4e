// Which rank keeps all others when nothing of an attempt moves: a pure comparison of where they stand, as
// their agents see it from outside. A rank is one of three:
//
//   absent   its process is stopped, has ended, or is in the kernel and does not leave it;
//   waits    it is inside an instruction that exchanges with others, which some other rank has not begun;
//   behind   neither: it stands where it needs nobody. Where others wait for it, it is the cause.
//
// A rank that is stopped is the cause: nothing else ends a wait for it. Without one it is the rank that waits
// for nobody and that most others wait for, or else one that is absent. None is to blame where nobody waits
// (all are inside the same exchange, or each alone in the same place: a network, a file system), and where
// all wait (they began exchanges in different orders). The only rank of a job is its own cause.
//
// Instructions have the same numbers on ranks of one pipeline stage. Of two stages the one that computes
// nothing, and is inside an exchange while it trains, waits for one of which that is not so: what a stage
// receives ahead of its need keeps nobody who computes.
//
// Groups of a mesh are not known here: a rank whose own group is complete may be taken to wait for one of
// another group. It is then no cause, which the one behind is all the same.
#pragma once

#include <string>
#include <vector>

#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct StillRank {
  int rank = 0;
  bool ended = false;   // It left with success, and `still` is empty.
  v1::RankStill still;  // With still_ms above 0.
  int stage = 0;
};

struct HangCause {
  int rank = -1;
  std::string words;  // What it does, and who waits for it in what.
  v1::Job::Hang hang;
};

// REQUIRES: some rank has not ended.
HangCause FindHang(const std::vector<StillRank>& ranks);

}  // namespace fsdpd
