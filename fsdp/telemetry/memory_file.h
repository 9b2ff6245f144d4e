// A snapshot of an allocator as the file that https://pytorch.org/memory_viz and torch.cuda._memory_viz open:
// the pickle that torch.cuda.memory._dump_snapshot() writes. An instruction stands where Python's stack
// would: who allocated a block is "Backward layer.3 mb 0" of the file "step 12". Pure.
#pragma once

#include <functional>
#include <string>

#include "fsdp/memory/memory_snapshot.h"

namespace fsdpd {

// `name_of`: of an instruction of the training program.
std::string MemoryFile(const MemorySnapshot& snapshot, const std::function<std::string(int)>& name_of);

}  // namespace fsdpd
