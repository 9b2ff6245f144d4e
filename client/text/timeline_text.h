// Text of a step timeline (`get JOB --timeline`): the longest instructions of each lane, and the memory by
// component at its peak. -o json has the complete timeline.
#pragma once

#include <string>

#include "proto/fsdpd/v1/timeline.pb.h"

namespace fsdpd {

std::string StepTimelineText(const v1::GetStepTimelineResponse& response);

}  // namespace fsdpd
