// Allocator snapshot in the file format of https://pytorch.org/memory_viz and torch.cuda._memory_viz: the
// pickle that torch.cuda.memory._dump_snapshot() writes. Instructions take the place of Python stack frames:
// a block was allocated by "Backward layer.3 mb 0" in file "step 12". Pure.
#pragma once

#include <functional>
#include <string>

#include "fsdp/memory/memory_snapshot.h"

namespace fsdpd {

// `name_of`: the name of an instruction of the training program.
std::string MemoryFile(const MemorySnapshot& snapshot, const std::function<std::string(int)>& name_of);

}  // namespace fsdpd
