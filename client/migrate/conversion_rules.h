// Table of the rules that `fsdpctl migrate` checks in addition to Megatron's own (megatron_rules.h): id,
// level and condition. SpecConversion::AddViolation() accepts only ids of this table. docs/rules.py compares
// the table with every call in client/ that reports a violation, and `fsdpctl explain` prints it.
#pragma once

#include <string>
#include <vector>

#include "base/spec_text/violation.h"

namespace fsdpd {

struct MigrateRule {
  std::string id;
  ViolationLevel level = ViolationLevel::kError;
  std::string text;  // The condition that must hold, in one line.
};

const std::vector<MigrateRule>& ConversionRules();

bool IsConversionRule(const std::string& id, ViolationLevel level);

}  // namespace fsdpd
