// Rules for the text of a spec file, and for the files that a spec names, before the spec is validated. They
// are rows like those of fsdp/plan/rules, for `fsdpctl explain` and docs/rules.md. docs/rules.py compares
// them with the code that reports these violations.
#pragma once

#include <vector>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {

const std::vector<RuleText>& TextRules();

}  // namespace fsdpd
