// Checks of models that describe their own units, plug-ins and packages: the description is untrusted input.
// Internal to rules.h.
//
// Within these limits no product of sizes overflows 63 bits: 2^40 elements, 2^24 values for each of 2^24
// tokens.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {

inline constexpr int64_t kMaxDescribedVocab = 1 << 24;
inline constexpr int kMaxDescribedUnits = 1026;          // 1024 layers, embedding and head.
inline constexpr int64_t kMaxDescribedParams = 1 << 17;  // Of all units.

// Part of the job: a thousand units of a package may share one graph, so names and shapes are not copied.
struct DescribedParam {
  const std::string* name;
  const google::protobuf::RepeatedField<int64_t>* shape;
};

// The parts that both kinds of model have.
struct DescribedUnit {
  // As patterns match it.
  std::string FullName(const DescribedParam& param) const;

  std::string field;  // "model.plugin.units[3]"
  std::string name;
  std::string module;   // Prefix of full names. Empty: none.
  std::string tied_to;  // Empty: none.
  std::string params_field;
  std::vector<DescribedParam> params;
};
using DescribedUnits = std::vector<DescribedUnit>;

// Characters that are safe in patterns, log lines and file names.
bool IsDescribedName(const std::string& name);

// The name in a message: shortened, if it is longer than a valid one.
std::string ShownName(const std::string& name);

Findings CheckUnitCount(int units, const std::string& fix);
Findings CheckParamCount(int64_t count, const std::string& fix);
Findings CheckNames(const DescribedUnits& units);
// `all_field`: field of a model with too many parameters.
Findings CheckParams(const DescribedUnits& units, const std::string& all_field, const std::string& fix);
Findings CheckTiedUnits(const DescribedUnits& units);

}  // namespace fsdpd
