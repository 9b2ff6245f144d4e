// What Megatron-LM and Megatron Bridge refuse, change or warn about when Megatron-FSDP runs, as a table over
// the settings that people bring: a run that would have been refused there is refused here with the same
// reason, and a value that would have been changed there is changed here, and told.
//
// Rules that are about this project's own job spec are fsdp/plan/rules/rules.h; docs/migrate.md lists which
// of Megatron's rules are where, and which have no meaning here.
#pragma once

#include <vector>

#include "client/migrate/conversion_rules.h"
#include "client/migrate/settings.h"

namespace fsdpd {

// Runs every rule in the table's order; adjustments change `*settings`.
SpecFaults CheckMegatron(Settings* settings);

std::vector<MigrateRule> MegatronRules();

}  // namespace fsdpd
