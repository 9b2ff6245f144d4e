// Documentation of the rules that the spec parser checks: the text of a spec, and the files that it names.
// They are rows like those of the validation rules (fsdp/plan/rules), for `explain`. docs/rules.py compares
// them with the rule ids in the parser's code.
#pragma once

#include <vector>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {

const std::vector<RuleText>& TextRules();

}  // namespace fsdpd
