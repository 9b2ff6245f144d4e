// Text of a plan: values chosen for `auto`, memory per rank by component, units, and the step program.
#pragma once

#include <string>

#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

// `program`: lists every instruction instead of a count per kind.
std::string PlanText(const v1::Plan& plan, bool program);

// Describes the use of a rank's pinned host memory.
std::string HostMemoryNote(const v1::JobSpec& spec);

std::string Milliseconds(double seconds);    // "9.14 ms", "1250 ms"
std::string MeshText(const v1::Mesh& mesh);  // "shard 64 x tensor 8": the axes with a size above 1.

}  // namespace fsdpd
