// A search of plans as people read it: the ways that were found, the spec as it is beside them, and of which
// kind and how many there are.
#pragma once

#include <string>

#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

// `name`: the job's.
std::string SearchText(const v1::PlanSearch& search, const std::string& name);

}  // namespace fsdpd
