// The rules that `migrate` prints in brackets in addition to Megatron's own (megatron_rules.h): id, level and
// what must hold. Conversion::Fault() accepts ids of this table only; docs/rules.py compares it with every
// place in client/ that reports a fault, and `explain` prints it.
#pragma once

#include <string>
#include <vector>

#include "base/violation.h"

namespace fsdpd {

struct MigrateRule {
  std::string id;
  FaultLevel level = FaultLevel::kError;
  std::string text;  // What must hold, in one line.
};

const std::vector<MigrateRule>& ConversionRules();

bool IsConversionRule(const std::string& id, FaultLevel level);

}  // namespace fsdpd
