// Breaks a program for a test, so that indices of edges and lifetimes still mean the instructions they meant.
#pragma once

#include "fsdp/plan/program/program.h"

namespace fsdpd {

// What waited for the instruction waits for the one before it on its lane; a life that began or ended with it
// begins one later or ends one earlier.
void RemoveInstruction(Program* program, int index);

// Before the one that is at `index` now; a life that spans the place spans the new one too. The new one's own
// edges are meant as indices before the insertion.
void InsertInstruction(Program* program, int index, const Instruction& instruction);

}  // namespace fsdpd
