// Proves a program before it runs, from the rules and not from the compiler:
//   1. dependencies point backwards (or to the step before) and name other lanes; no cycle;
//   2. nothing reads a buffer before the write it needs completed, or after its lifetime;
//   3. no two live buffers overlap in the arena, and none leaves it, within a step and from one to the next;
//   4. each unit runs forward and backward once per micro-batch, the last one of all both at once, in chain
//      order, with no more micro-batches in flight than the schedule of stages needs, on the lane of its
//      operation, and a borrowing unit has its lender's parameters there; gradients of matrices that
//      backwards put off come behind them, of no more micro-batches at a time than there are stages before
//      and one;
//   5. each gradient is reduced exactly as strategy and mesh say, the first time setting and then adding, and
//      what two stages have is summed over both before it is used;
//   6. Norm follows every reduction, each Update follows Norm, every bucket that is trained or balances is
//      updated once, the latter by choices of its own experts alone, and what reads main parameters is done
//      before the Update or waits for the one of the step before;
//   7. arena_bytes within the budget, when there is one;
//   8. evaluation changes nothing: it gathers, runs forward once, and ends with Loss;
//   9. where the job writes checkpoints, each step copies every bucket out exactly once, after its Update
//      (and, by rule 6, before the next one); else nothing is copied out;
//  10. a stage of several sends all that it makes for its neighbours and takes all that comes from them, each
//      once, after it was made and before it is needed; what crosses fits into kStageTransferSlots of each
//      kind, and by the end of a step nothing is on its way. That the neighbors do their part is
//      in verify_stages.h;
//  11. what of the optimizer's state lies in host memory is brought once a step before the bucket's Update,
//      and put back once behind it; no other bucket has such a Fetch or Offload;
//  12. what a layer keeps in host memory is put there behind its forward, dropped from the device behind that
//      and brought back behind that, each once, and its backward comes behind all of it; no more than
//      kStagedLayers are on their way at a time, what comes back waits for all that compute was given before
//      it, and no other layer has any of these.
// "Completed" means ordered by lanes and dependencies, never by the position in the list. Collective order is
// the lanes' order, the same on all ranks because the program is.
#pragma once

#include <absl/status/status.h>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

// OK, or INTERNAL naming the rule and the instruction: a program that does not verify is a bug of the
// compiler.
absl::Status Verify(const Program& program, const Layout& layout, const Spec& spec);

}  // namespace fsdpd
