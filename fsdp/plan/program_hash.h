// The number that ranks compare before their first collective: equal only when layout, instructions, buffers
// and every number of the spec that ranks must agree on are equal. The job's name, paths and memory budget
// are not in it: they may differ without harm.
#pragma once

#include "fsdp/plan/program.h"

namespace fsdpd {

// Over everything but Program::hash itself. The same on every machine of the same byte order.
uint64_t HashProgram(const Spec& spec, const Layout& layout, const Program& program);

}  // namespace fsdpd
