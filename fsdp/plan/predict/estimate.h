// About how long a step takes, in closed form: what its instructions take alone (cost.h), summed up by lane
// over each part of the step, and each part as long as its busiest lane. No program is compiled and nothing
// is ordered, so it costs a fraction of simulate.h, and is meant for comparing: which of a thousand ways to
// run a job are worth a simulation. Pure.
#pragma once

#include "fsdp/plan/predict/cost.h"

namespace fsdpd {

double EstimateStepSeconds(const Spec& spec, const ModelFacts& model, const Layout& layout,
                           const DeviceProfile& profile, Placement placement);

}  // namespace fsdpd
