// Proves that the programs of a job's pipeline stages fit together, each of which Verify() has proven by
// itself:
//  11. what a stage sends another receives, the one that has the next run of the model's units or the one
//      before: as often, in the same order whatever it is, of the same run and micro-batch, as many numbers
//      of the same type; and all stages take part in what goes over all ranks, in the same order;
//  12. nothing waits in a circle.
// For the last, what is sent is taken to leave only when it is received, as if nobody had room for it, and
// each instruction to wait for all of its lane before it, for what its program says, and for all that compute
// has to do before it in the list: CPU ranks compute on the thread that submits. Where ranks load kernels,
// each but those that send and receive waits for everything before it: CUDA loads a kernel when it is
// launched for the first time, and waits then for all that the device has been given, receives that another
// rank has to meet among it. With these waits, those of all stages together have an order in which every
// instruction runs; whoever has more room, more threads or all kernels waits for less. One step is enough:
// each step's stage_transfers match each other, and nothing waits for a later step.
//
// Ranks of one stage run one program, so whatever they do among themselves they do in one order.
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
