// Cross-stage verifier: proves that the programs of a job's pipeline stages match. Verify() has already
// proven each of them separately. Rules (after those of verify.h):
// 13. each send has a matching receive in the stage with the next (or previous) run: same count, same order
//     whatever the kind, same run and micro-batch, same element count and type; and all stages join the
//     collectives over all ranks in the same order;
// 14. there is no deadlock.
// Rule 14 is proven under pessimistic assumptions. A send completes only when it is received (no buffering).
// An instruction waits for all earlier ones of its lane, for its dependencies, and for all compute listed
// before it, because CPU ranks compute on the submitting thread. With `load_kernels`, every instruction
// except sends and receives also waits for everything listed before it: CUDA loads a kernel lazily at its
// first launch, which synchronizes with all work submitted so far, including receives whose peer must still
// send. If all stages together have a topological order under these waits, every instruction runs; an
// execution with more buffering, threads or preloaded kernels waits for less. One step is enough: the
// transfers of each step match each other, and nothing waits for a later step.
//
// Ranks of one stage run the same program, so their collectives are in the same order.
#pragma once

#include <absl/status/status.h>

#include <vector>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

struct StageProgram {
  const Program* program = nullptr;
  const Layout* layout = nullptr;
};

// OK, or INTERNAL naming the rule, the stage and the instruction.
absl::Status VerifyStages(const std::vector<StageProgram>& stages, bool load_kernels);

}  // namespace fsdpd
