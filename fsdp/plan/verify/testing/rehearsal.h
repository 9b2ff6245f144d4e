// Randomized interpreter of programs, used to cross-check the verifier. Each tensor is one number, lanes run
// at random speeds, and buffers have their real byte ranges. It knows what each operation does and none of
// the verifier's rules: an instruction takes time, its output is garbage until it ends, and its inputs must
// not change meanwhile. A program that is wrong or has a race therefore produces other numbers than the
// reference (RunReference).
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

// Result of a run: one number per bucket of main parameters, one per step for norm and loss, and, if the job
// saves, one per step and bucket for its snapshot.
struct Outcome {
  std::vector<uint64_t> main;
  std::vector<uint64_t> steps;
  std::vector<uint64_t> copies = {};
  bool finished = true;  // False: deadlock.

  bool operator==(const Outcome& other) const {
    return main == other.main && steps == other.steps && copies == other.copies && finished == other.finished;
  }
};

// Runs consecutive steps, interleaving lanes by `seed`. REQUIRES: valid indices of units, buckets, buffers
// and instructions.
Outcome Rehearse(const Program& program, const Layout& layout, const Spec& spec, int steps, uint32_t seed);

// Reference: the same steps computed sequentially, without a program.
Outcome RunReference(const Layout& layout, const Spec& spec, ProgramKind kind, int steps);

}  // namespace fsdpd
