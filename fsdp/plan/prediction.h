// A plan's step in simulated time, as the plan's message says it.
#pragma once

#include "fsdp/plan/plan.h"
#include "fsdp/plan/predict/device_profile.h"

namespace fsdpd {

// Adds Plan.prediction. REQUIRES: the plan was accepted or is over budget only, and the profile has no
// faults. `timeline`: Prediction.timeline too.
void AddPrediction(const Plan& plan, const DeviceProfile& profile, bool timeline, v1::Plan* proto);

// Time of a step in which a rank computes nothing because of communication: with the compute lane idle, or
// within units' exchanges. The sum of the ops' exposed times and the exchanges'.
double ExposedSeconds(const v1::Prediction& prediction);

v1::DeviceProfile ToProto(const DeviceProfile& profile);
DeviceProfile FromProto(const v1::DeviceProfile& profile);

}  // namespace fsdpd
