// Proves a program before it runs, from the rules and not from the compiler:
//   1. dependencies point backwards and name other lanes; no cycle;
//   2. nothing reads a buffer before the write it needs completed, or after its lifetime;
//   3. no two live buffers overlap in the arena, and none leaves it;
//   4. each unit runs forward and backward once per micro-batch, in chain order;
//   5. each gradient is reduced exactly as the strategy says, the first time setting and then adding;
//   6. Norm follows every Reduce, each Update follows Norm, every unit is updated once;
//   7. arena_bytes within the budget, when there is one.
// "Completed" means ordered by lanes and dependencies, never by the position in the list.
#pragma once

#include <absl/status/status.h>

#include "fsdp/plan/program.h"

namespace fsdpd {

// OK, or INTERNAL naming the rule and the instruction: a program that does not verify is a bug of the
// compiler.
absl::Status Verify(const Program& program, const Layout& layout, const Spec& spec);

}  // namespace fsdpd
