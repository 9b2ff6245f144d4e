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

Violations CheckJob(const v1::JobSpec& job);

// For docs and for a test that ids are unique: each rule's id and one-line text.
struct RuleText {
  std::string id;
  std::string text;
};
std::vector<RuleText> AllRules();

}  // namespace fsdpd
