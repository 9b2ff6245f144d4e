// Table of the rules that `fsdpctl migrate` checks in addition to Megatron's own (megatron_rules.h): id,
// level, condition, and the text of its message. docs/rules.py compares the table with every call in client/
// that reports a violation, and `fsdpctl explain` prints it.
#pragma once

#include <absl/strings/str_cat.h>

#include <initializer_list>
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

// Returns the violation of a rule of the table by a setting. `args` replace $0, $1, ... in its message.
Violation MakeViolation(const char* rule, const std::string& setting,
                        std::initializer_list<absl::AlphaNum> args = {});

}  // namespace fsdpd
