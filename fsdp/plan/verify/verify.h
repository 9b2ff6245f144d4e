// Verifier: proves that a program is correct before it runs. Shares no code with the compiler; works from
// these rules:
//  1. dependencies point backwards (or to the previous step) and to other lanes; there is no cycle;
//  2. no instruction reads a buffer before the write that it needs has completed, or after its lifetime;
//  3. live buffers do not overlap and stay within the arena, within a step and across steps;
//  4. each unit runs forward and backward once per micro-batch (the last unit of the model: both in one), in
//     chain order, on the lane of its operation, with no more micro-batches in flight than the pipeline
//     schedule needs; a borrowing unit has its lender's parameters resident; deferred weight gradients
//     follow their backwards, for at most as many micro-batches as there are earlier stages, plus one;
//  5. each gradient is reduced exactly as strategy and mesh require, first setting and then adding; the
//     gradient of tied embeddings on two stages is summed over both before it is used;
//  6. Norm follows every reduction and each Update follows Norm; every bucket that is trained or balanced is
//     updated once, selection biases only from the routing counts of their own experts; readers of main
//     parameters complete before the Update, or wait for the one of the previous step;
//  7. arena_bytes is within the memory budget, if there is one;
//  8. evaluation changes nothing: it gathers, runs forward once, and ends with Loss;
//  9. if the job writes checkpoints, each step snapshots every bucket once, after its Update (and, by rule 6,
//     before the next one); otherwise nothing is snapshotted;
// 10. a pipeline stage sends all outputs that its neighbors need and receives all inputs from them, each
//     once, after it was produced and before it is needed; at most kStageTransferSlots of each kind are in
//     use; at the end of a step no transfer is in flight. verify_stages.h checks the neighbors' side;
// 11. offloaded optimizer state is fetched once per step before the bucket's Update, and written back once
//     after it; no other bucket has a Fetch or Offload;
// 12. offloaded activations are copied to host memory after the forward, then dropped from the device, then
//     fetched back, each once, and the backward follows; at most kStagedLayers are in flight; a fetch waits
//     for all compute instructions listed before it; no other layer has any of these operations.
// "Completed" means ordered by lanes and dependencies, never by the position in the list. Collectives run in
// lane order, which is the same on all ranks because they run the same program.
//
// Pure and thread-safe.
#pragma once

#include <absl/status/status.h>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

// OK, or INTERNAL naming the rule and the instruction: a program that fails verification is a compiler bug.
absl::Status Verify(const Program& program, const Layout& layout, const Spec& spec);

}  // namespace fsdpd
