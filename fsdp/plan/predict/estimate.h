// About how long a step takes, in closed form: what its instructions take alone (cost.h), summed up by lane
// over each part of the step, and each part as long as its busiest lane. No program is compiled and nothing
// is ordered, so it costs a fraction of simulate.h, and is meant for comparing: which of a thousand ways to
// run a job are worth a simulation. Pure.
#pragma once

#include "fsdp/plan/predict/cost.h"

namespace fsdpd {

// By stage, or of the one that there is. Of several the step is as long as that of the one with most to do,
// with what it waits for: the turns of the stages before and behind it, and what crosses between them.
double EstimateStepSeconds(const Spec& spec, const std::vector<ModelFacts>& stages,
                           const std::vector<Layout>& layouts, const DeviceProfile& profile,
                           Placement placement);

}  // namespace fsdpd
