// Checks of models that describe their own units, plug-ins and packages: the description is untrusted input.
// Internal to rules.h.
//
// Within these limits no product of sizes overflows 63 bits: 2^40 elements, 2^24 values for each of 2^34
// tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {

inline constexpr int64_t kMaxDescribedVocab = 1 << 24;
inline constexpr int64_t kMaxDescribedTokens = int64_t{1} << 34;
inline constexpr int kMaxDescribedUnits = 1026;  // 1024 layers, embedding and head.

struct DescribedParam {
  std::string name;
  std::string full_name;  // As patterns match it.
  std::vector<int64_t> shape;
};

// A copy of what both kinds of model have.
struct DescribedUnit {
  std::string field;  // "model.plugin.units[3]"
  std::string name;
  std::string tied_to;  // Empty: none.
  std::string params_field;
  std::vector<DescribedParam> params;
};
using DescribedUnits = std::vector<DescribedUnit>;

// Characters that are safe in patterns, log lines and file names.
bool IsDescribedName(const std::string& name);

Findings CheckUnitCount(int units, const std::string& fix);
Findings CheckNames(const DescribedUnits& units);
// `all_field`: field of a model with too many parameters.
Findings CheckParams(const DescribedUnits& units, const std::string& all_field, const std::string& fix);
Findings CheckTiedUnits(const DescribedUnits& units);

}  // namespace fsdpd
