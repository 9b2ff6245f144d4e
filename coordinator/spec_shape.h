// Faults of a job spec as a message, before its meaning: fields that this version does not know, and enum
// numbers that no name stands for. Both arrive silently from a newer or hand-made client and would be ignored
// otherwise.
#pragma once

#include "base/violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

inline constexpr char kUnknownEnum[] = "unknown_enum";  // The rule of an enum's number without a name.

Violations CheckShape(const v1::JobSpec& spec);

}  // namespace fsdpd
