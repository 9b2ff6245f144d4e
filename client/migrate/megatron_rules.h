// Table of the checks that Megatron-LM and Megatron Bridge make when Megatron-FSDP is used. A run that
// Megatron refuses is refused with the same reason, and a value that Megatron changes is changed and
// reported.
//
// fsdp/plan/rules/rules.h has the rules of the job spec. docs/migrate.md lists where each of Megatron's rules
// is implemented, and which of them do not apply.
#pragma once

#include <vector>

#include "client/migrate/conversion_rules.h"
#include "client/migrate/settings.h"

namespace fsdpd {

// Runs every rule in the order of the table. Adjustments change `*settings`, and later rules see the new
// values.
LocatedViolations CheckMegatron(Settings* settings);

// Id, level and condition of each rule, for `fsdpctl explain` and docs/rules.md.
std::vector<MigrateRule> MegatronRules();

}  // namespace fsdpd
