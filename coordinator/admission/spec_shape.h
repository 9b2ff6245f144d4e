// Violations of a job spec at the message level: unknown fields and unnamed enum numbers. Both come from a
// newer or hand-written client and would otherwise be ignored silently. Checked before the spec's meaning.
#pragma once

#include "base/spec_text/violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

inline constexpr char kUnknownEnum[] = "unknown_enum";  // Rule id of an enum number without a name.

Violations CheckSpecShape(const v1::JobSpec& spec);

}  // namespace fsdpd
