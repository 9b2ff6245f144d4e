// A plan as people read it: what `auto` became, memory per rank by component, units, and the step's program.
#pragma once

#include <string>

#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

// `program`: list every instruction instead of a count by kind.
std::string PlanText(const v1::Plan& plan, bool program);

// What pinned host memory of a rank is there for.
std::string HostMemoryNote(const v1::JobSpec& spec);

std::string Milliseconds(double seconds);    // "9.14 ms", "1250 ms"
std::string MeshText(const v1::Mesh& mesh);  // "shard 64 x tensor 8": the axes that there are.

}  // namespace fsdpd
