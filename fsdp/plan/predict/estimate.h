// Closed-form estimate of step time. Sums instruction times (cost.h) by lane over each phase of the step; a
// phase takes as long as its busiest lane. Compiles no program and computes no order, so it costs a fraction
// of simulate.h. Used to rank thousands of candidate configurations. Pure.
#pragma once

#include "fsdp/plan/predict/cost.h"

namespace fsdpd {

// One entry per stage. With several stages, the step takes as long as that of the busiest stage plus the time
// that it waits: for the turns of earlier and later stages, and for transfers between them.
double EstimateStepSeconds(const Spec& spec, const std::vector<ModelFacts>& stages,
                           const std::vector<Layout>& layouts, const DeviceProfile& profile,
                           Placement placement);

}  // namespace fsdpd
