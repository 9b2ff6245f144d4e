// How a step went, as people read it: the longest runs of each lane, and what the memory held when it was
// highest. All of it is for programs: -o json.
#pragma once

#include <string>

#include "proto/fsdpd/v1/course.pb.h"

namespace fsdpd {

std::string CourseText(const v1::GetStepCourseResponse& told);

}  // namespace fsdpd
