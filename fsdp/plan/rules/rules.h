// Validation of job specs. The rules are a table; each has an id, field, severity, check, reason and fix.
// CheckJob() runs all of them and reports every violation in one pass. A rule whose precondition failed is
// skipped, so that consequences of another error are not reported.
//
// Used by the coordinator (Submit, Validate, Plan), by fsdpctl offline, and by each rank before it starts.
// Pure; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "base/spec_text/violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `unparsed`: fields that were written but are missing from `job` because their value could not be parsed.
// The parser has already reported them; CheckJob() reports neither them nor their consequences.
Violations CheckJob(const v1::JobSpec& job, const std::vector<std::string>& unparsed = {});

// Rule for a variable in env that agents accept only if allowed: a warning here. The coordinator, which knows
// the agents, decides.
constexpr char kEnvNeedsPermission[] = "env_needs_permission";

// Whether this optimizer supports fp8 moments (rule fp8_moments_clipped). Shared by several rules that
// suggest a moment type. Reads no field with a nonzero default, so defaults need not be filled in.
bool MomentsMayBeFp8(const v1::Optimizer& optimizer);

// Description of a rule, for documentation and for the test that ids are unique.
struct RuleText {
  std::string id;
  std::string text;  // What must hold, in one line.
  ViolationLevel level = ViolationLevel::kError;
  std::string field;
};
std::vector<RuleText> AllRules();

}  // namespace fsdpd
