// Edits that break a program in tests, while the indices in dependencies and lifetimes keep naming the same
// instructions.
#pragma once

#include "fsdp/plan/program/program.h"

namespace fsdpd {

// Instructions that waited for the removed one wait for its predecessor on the lane. A lifetime that began
// with it begins one later; one that ended with it ends one earlier.
void RemoveInstruction(Program* program, int index);

// Inserts before the instruction now at `index`. Lifetimes that span the position span the new instruction
// too. The new instruction's own dependencies are indices before the insertion.
void InsertInstruction(Program* program, int index, const Instruction& instruction);

}  // namespace fsdpd
