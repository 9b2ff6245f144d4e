// Discrete-event simulation of one program: an instruction starts when its lane is free and its dependencies
// are done. Compute and communication slow each other down while both run. Copies to and from host memory
// slow nothing down, because a copy engine does them.
//
// Pure and deterministic. REQUIRES: the program verifies; a dependency cycle aborts.
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
  // By step, by instruction; in seconds since the first step's start.
  std::vector<std::vector<Interval>> steps;
  // Interval during which the same instructions run; per lane the instruction's index, or -1.
  struct Piece {
    Interval time;
    std::array<int, kLanes> running{};
  };
  std::vector<Piece> pieces;  // In order; empty intervals are omitted.
};

struct Slowdown {
  double compute = 1;        // Compute lane, while a communication lane is busy.
  double communication = 1;  // Communication lanes, while the compute lane is busy.
};

// `seconds`: by instruction index. Consecutive steps are ordered by after_previous.
LaneTimes RunLanes(const Program& program, const std::vector<double>& seconds, int steps, Slowdown slowdown);

}  // namespace fsdpd
