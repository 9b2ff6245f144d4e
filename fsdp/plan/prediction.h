// Step-time prediction of a plan, as the Prediction message.
#pragma once

#include "fsdp/plan/plan.h"
#include "fsdp/plan/predict/device_profile.h"

namespace fsdpd {

// Sets Plan.prediction. REQUIRES: the plan was accepted or only exceeds its budget, and CheckProfile() found
// no violation. `timeline`: also set Prediction.timeline.
void AddPrediction(const Plan& plan, const DeviceProfile& profile, bool timeline, v1::Plan* proto);

// Exposed communication time of a step: the compute lane is idle, or a unit's forward or backward is blocked
// in an exchange. Equals the sum of the exposed times of all operations and exchanges.
double ExposedSeconds(const v1::Prediction& prediction);

v1::DeviceProfile ToProto(const DeviceProfile& profile);
DeviceProfile FromProto(const v1::DeviceProfile& profile);

}  // namespace fsdpd
