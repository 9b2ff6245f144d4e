#include "fsdp/plan/rules/described_rules.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <set>

#include "base/text.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxParams = 1 << 12;  // Of a unit: 512 experts have 1536 matrices.
constexpr int kMaxDims = 8;
constexpr int64_t kMaxElements = int64_t{1} << 40;
constexpr size_t kMaxNameBytes = 120;

bool IsValidName(const std::string& name, const std::string& field, Findings* findings) {
  if (IsDescribedName(name)) return true;
  findings->push_back(
      {absl::StrCat("'", ShownName(name), "' is not a valid name"),
       absl::StrCat("use letters, digits, '.', '_' and '-', at most ", kMaxNameBytes, " in all"), field});
  return false;
}

bool IsUniqueName(const std::string& name, const std::string& field, std::set<std::string>* taken,
                  Findings* findings) {
  if (taken->insert(name).second) return true;
  findings->push_back({absl::StrCat("'", name, "' is not unique"), "give each a unique name", field});
  return false;
}

std::string ParamField(const DescribedUnit& unit, size_t param, const char* name) {
  return absl::StrCat(unit.params_field, "[", param, "].", name);
}

// The product of the sizes; 0 if one is not positive or the product is too large.
int64_t ElementsOf(const DescribedParam& param) {
  int64_t elements = 1;
  for (const int64_t size : *param.shape) {
    if (size < 1 || size > kMaxElements / elements) return 0;
    elements *= size;
  }
  return elements;
}

}  // namespace

std::string DescribedUnit::FullName(const DescribedParam& param) const {
  return module.empty() ? *param.name : absl::StrCat(module, ".", *param.name);
}

std::string ShownName(const std::string& name) {
  return name.size() <= kMaxNameBytes ? name : absl::StrCat(CutText(name, kMaxNameBytes), "...");
}

bool IsDescribedName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

Findings CheckUnitCount(int units, const std::string& fix) {
  if (units >= 2 && units <= kMaxDescribedUnits) return {};
  return {{absl::StrCat("the model has ", units, " units and must have 2 to ", kMaxDescribedUnits,
                        ": one reads the tokens, and another computes the loss"),
           fix}};
}

Findings CheckParamCount(int64_t count, const std::string& fix) {
  if (count <= kMaxDescribedParams) return {};
  return {{absl::StrCat("the model has ", count, " parameter tensors, of at most 2^17"), fix}};
}

Findings CheckNames(const DescribedUnits& units) {
  Findings findings;
  std::set<std::string> names, params;
  for (const DescribedUnit& unit : units) {
    if (!IsValidName(unit.name, unit.field + ".name", &findings) ||
        !IsUniqueName(unit.name, unit.field + ".name", &names, &findings)) {
      continue;
    }
    if (!unit.module.empty() && !IsValidName(unit.module, unit.field + ".module", &findings)) continue;
    for (size_t p = 0; p < unit.params.size(); ++p) {
      const std::string field = ParamField(unit, p, "name");
      if (IsValidName(*unit.params[p].name, field, &findings))
        IsUniqueName(unit.FullName(unit.params[p]), field, &params, &findings);
    }
  }
  return findings;
}

Findings CheckParams(const DescribedUnits& units, const std::string& all_field, const std::string& fix) {
  Findings findings;
  int64_t total = 0, count = 0;
  for (const DescribedUnit& unit : units) {
    const auto params = static_cast<int64_t>(unit.params.size());
    count += params;
    if (params < 1 || params > kMaxParams) {
      findings.push_back({absl::StrCat("unit ", ShownName(unit.name), " has ", params,
                                       " parameters and must have 1 to ", kMaxParams),
                          params < 1 ? "merge it with its neighbor" : "divide it into several units",
                          unit.params_field});
    }
    for (size_t p = 0; p < unit.params.size(); ++p) {
      const DescribedParam& param = unit.params[p];
      const int64_t elements = ElementsOf(param);
      total = std::min(total + elements, kMaxElements + 1);
      if (elements > 0 && !param.shape->empty() && param.shape->size() <= kMaxDims) continue;
      findings.push_back({absl::StrCat(ShownName(unit.FullName(param)), " must have 1 to ", kMaxDims,
                                       " dimensions, each positive, and 2^40 elements at most"),
                          fix, ParamField(unit, p, "shape")});
    }
  }
  if (findings.empty() && total > kMaxElements)
    findings.push_back({"the model has more than 2^40 parameters", fix, all_field});
  if (findings.empty()) AddFindings(CheckParamCount(count, fix), all_field, &findings);
  return findings;
}

Findings CheckTiedUnits(const DescribedUnits& units) {
  Findings findings;
  std::set<std::string> earlier, lent;
  for (const DescribedUnit& unit : units) {
    if (!unit.tied_to.empty() && earlier.count(unit.tied_to) == 0) {
      findings.push_back({absl::StrCat("unit ", ShownName(unit.name), " borrows from '",
                                       ShownName(unit.tied_to), "', which is not an earlier unit"),
                          "name an earlier unit", unit.field + ".tied_to"});
    } else if (!unit.tied_to.empty() && !lent.insert(unit.tied_to).second) {
      findings.push_back({absl::StrCat("unit ", ShownName(unit.tied_to), " is borrowed twice"),
                          "let one unit borrow from it", unit.field + ".tied_to"});
    }
    earlier.insert(unit.name);
  }
  return findings;
}

}  // namespace fsdpd
