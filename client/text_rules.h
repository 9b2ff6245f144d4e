// What must hold of the text of a spec, and of the files that it names, before there is a spec to judge: as
// rows of the rule table (fsdp/plan/rules), for `explain`. docs/rules.py holds them against the places that
// find them.
#pragma once

#include <vector>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {

const std::vector<RuleText>& TextRules();

}  // namespace fsdpd
