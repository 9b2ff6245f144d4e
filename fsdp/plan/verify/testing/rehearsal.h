// Runs a program on stand-ins for its values: a number for each tensor, lanes at random speeds, buffers at
// their bytes. It knows what each operation does and nothing of the rules: instructions take time, what they
// write is garbage until they end, and what they read must stay as it is meanwhile. So a program whose result
// depends on luck, or is wrong, gives other numbers than training by the book. The verifier's tests hold its
// judgement against this one.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

// What a run leaves: a number per bucket of main parameters, one per step for its norm and loss, and, where
// the job saves, one per step and bucket for what was copied out.
struct Outcome {
  std::vector<uint64_t> main;
  std::vector<uint64_t> steps;
  std::vector<uint64_t> copies = {};
  bool finished = true;  // False: some instruction waits for ever.

  bool operator==(const Outcome& other) const {
    return main == other.main && steps == other.steps && copies == other.copies && finished == other.finished;
  }
};

// Several steps in a row with the lanes' order by `seed`. REQUIRES: indices of units, buckets, buffers and
// instructions that exist.
Outcome Rehearse(const Program& program, const Layout& layout, const Spec& spec, int steps, uint32_t seed);

// The same steps one instruction at a time, without a program.
Outcome ByTheBook(const Layout& layout, const Spec& spec, ProgramKind kind, int steps);

}  // namespace fsdpd
