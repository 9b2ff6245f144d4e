// Instructions on lanes in simulated time: each starts when its lane is free and what it depends on is done.
// Given how long each takes alone; compute and communication slow each other down while both run. Copies into
// host memory slow nothing down: a copy engine makes them.
//
// Pure and deterministic. REQUIRES: the program verifies; one with a cycle of dependencies aborts.
#pragma once

#include <array>
#include <vector>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

struct Interval {
  double start = 0;
  double end = 0;
};

struct LaneTimes {
  std::vector<std::vector<Interval>> steps;  // By step, by instruction; seconds from the first step's start.
  // Time in pieces during which the same instructions run: by lane the instruction's index, or -1.
  struct Piece {
    Interval time;
    std::array<int, kLanes> running{};
  };
  std::vector<Piece> pieces;  // In order; without those of no length.
};

struct Slowdown {
  double compute = 1;        // Of the compute lane while another lane is busy.
  double communication = 1;  // Of other lanes, but for copies, while the compute lane is.
};

// `seconds` by instruction index. Steps follow each other as after_previous says.
LaneTimes RunLanes(const Program& program, const std::vector<double>& seconds, int steps, Slowdown slowdown);

}  // namespace fsdpd
