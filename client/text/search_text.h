// Text of a plan search (`plan --search`): the best configurations, the spec for comparison, and the number
// of configurations that were searched, valid, and estimated to fit.
#pragma once

#include <string>

#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

// `name`: name of the job.
std::string SearchText(const v1::PlanSearch& search, const std::string& name);

}  // namespace fsdpd
