// The validation table: every rule that a job spec must meet, as data. A rule says its id, field, severity,
// when it is broken, why that matters and what to write instead. CheckJob() runs them all and reports every
// fault at once; a rule whose precondition failed stays silent rather than report a consequence.
//
// Used by the coordinator (Submit, Validate, Plan), by fsdpctl offline, and by the rank before it starts.
#pragma once

#include <string>
#include <vector>

#include "base/violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `unread`: fields that somebody wrote and that are not in `job`, because what was written is no value of
// theirs. The reader has told that; here nothing more is said of them, nor of what hangs on them.
Violations CheckJob(const v1::JobSpec& job, const std::vector<std::string>& unread = {});

// A name in env that only agents which allow it take: a warning here, and for the coordinator, which knows
// them, to judge.
constexpr char kEnvNeedsPermission[] = "env_needs_permission";

// The field is `parent` or lies below it: "data.tokens[1].path" is within "data.tokens".
bool IsWithin(const std::string& field, const std::string& parent);

// Whether this optimizer's moments may be fp8 (fp8_moments_clipped): what else a job may have them in is
// offered by several. No default of what it reads is above 0, so they need not be filled in.
bool MomentsMayBeFp8(const v1::Optimizer& optimizer);

// For people who ask what a rule is, and for a test that ids are unique.
struct RuleText {
  std::string id;
  std::string text;  // What must hold, in one line.
  FaultLevel level = FaultLevel::kError;
  std::string field;
};
std::vector<RuleText> AllRules();

}  // namespace fsdpd
