// Rules of model.plugin: the plug-in's description of itself is untrusted input.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

// Within these limits no product of sizes overflows 63 bits: 2^40 elements, 2^24 values for each of 2^34
// tokens.
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int kMaxUnits = 1026;  // 1024 layers, embedding and head.
constexpr int kMaxParams = 1024;
constexpr int kMaxDims = 8;
constexpr int64_t kMaxElements = int64_t{1} << 40;
constexpr int64_t kMaxValues = 1 << 24;
constexpr double kMaxFlops = 1e15;
constexpr size_t kMaxNameBytes = 120;

constexpr char kDescribeAgain[] = "make the description again: fsdpd-rank --describe-plugin PATH";

const v1::Plugin& PluginOf(const Facts& f) { return f.job.model().plugin(); }

// The units are present, or the client will read them from the plug-in.
bool IsDescribed(const Facts& f) {
  return f.job.model().has_plugin() && PluginOf(f).description().empty() && f.IsValid({"model.plugin.units"});
}

std::string UnitField(int unit, const char* name) {
  return absl::StrCat("model.plugin.units[", unit, "].", name);
}

std::string ParamField(int unit, int param, const char* name) {
  return UnitField(unit, absl::StrCat("params[", param, "].", name).c_str());
}

// Characters that are safe in patterns, log lines and file names.
bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

// `full`: the full name that patterns match. Returns false if it is invalid.
bool CheckNameIn(const std::string& name, const std::string& full, const std::string& field,
                 std::set<std::string>* taken, Findings* findings) {
  if (!IsName(name)) {
    findings->push_back(
        {absl::StrCat("'", name, "' is not a valid name"),
         absl::StrCat("use letters, digits, '.', '_' and '-', at most ", kMaxNameBytes, " in all"), field});
  } else if (!taken->insert(full).second) {
    findings->push_back({absl::StrCat("'", full, "' is not unique"), "give each a unique name", field});
  } else {
    return true;
  }
  return false;
}

Findings ChecksUnits(const Facts& f) {
  if (!f.job.model().has_plugin() || !PluginOf(f).description().empty()) return {};
  const int units = PluginOf(f).units_size();
  if (units >= 2 && units <= kMaxUnits) return {};
  return {{absl::StrCat("the model has ", units, " units and must have 2 to ", kMaxUnits,
                        ": one reads the tokens, and another computes the loss"),
           "set description to a file with the output of `fsdpd-rank --describe-plugin PATH`, which lists "
           "the units"}};
}

Findings ChecksNames(const Facts& f) {
  if (!IsDescribed(f)) return {};
  Findings findings;
  std::set<std::string> units, params;
  for (int u = 0; u < PluginOf(f).units_size(); ++u) {
    const v1::Plugin::Unit& unit = PluginOf(f).units(u);
    if (!CheckNameIn(unit.name(), unit.name(), UnitField(u, "name"), &units, &findings)) continue;
    for (int p = 0; p < unit.params_size(); ++p) {
      const std::string& name = unit.params(p).name();
      CheckNameIn(name, absl::StrCat(unit.name(), ".", name), ParamField(u, p, "name"), &params, &findings);
    }
  }
  return findings;
}

// The product of the sizes; 0 if one is not positive or the product is too large.
int64_t Elements(const v1::Plugin::Param& param) {
  int64_t elements = 1;
  for (const int64_t size : param.shape()) {
    if (size < 1 || size > kMaxElements / elements) return 0;
    elements *= size;
  }
  return elements;
}

Findings ChecksParams(const Facts& f) {
  if (!IsDescribed(f)) return {};
  Findings findings;
  int64_t total = 0;
  for (int u = 0; u < PluginOf(f).units_size(); ++u) {
    const v1::Plugin::Unit& unit = PluginOf(f).units(u);
    if (unit.params_size() < 1 || unit.params_size() > kMaxParams) {
      findings.push_back({absl::StrCat("unit ", unit.name(), " has ", unit.params_size(),
                                       " parameters and must have 1 to ", kMaxParams),
                          "merge it with its neighbor", UnitField(u, "params")});
    }
    for (int p = 0; p < unit.params_size(); ++p) {
      const v1::Plugin::Param& param = unit.params(p);
      const int64_t elements = Elements(param);
      total = std::min(total + elements, kMaxElements + 1);
      if (elements > 0 && param.shape_size() >= 1 && param.shape_size() <= kMaxDims) continue;
      findings.push_back({absl::StrCat(unit.name(), ".", param.name(), " must have 1 to ", kMaxDims,
                                       " dimensions, each positive, and 2^40 elements at most"),
                          kDescribeAgain, ParamField(u, p, "shape")});
    }
  }
  if (findings.empty() && total > kMaxElements) {
    findings.push_back({"the model has more than 2^40 parameters", kDescribeAgain, "model.plugin.units"});
  }
  return findings;
}

Findings ChecksBorrows(const Facts& f) {
  if (!IsDescribed(f)) return {};
  Findings findings;
  std::set<std::string> earlier, lent;
  for (int u = 0; u < PluginOf(f).units_size(); ++u) {
    const v1::Plugin::Unit& unit = PluginOf(f).units(u);
    if (!unit.tied_to().empty() && earlier.count(unit.tied_to()) == 0) {
      findings.push_back({absl::StrCat("unit ", unit.name(), " borrows from '", unit.tied_to(),
                                       "', which is not an earlier unit"),
                          "name an earlier unit", UnitField(u, "tied_to")});
    } else if (!unit.tied_to().empty() && !lent.insert(unit.tied_to()).second) {
      findings.push_back({absl::StrCat("unit ", unit.tied_to(), " is borrowed twice"),
                          "let one unit borrow from it", UnitField(u, "tied_to")});
    }
    earlier.insert(unit.name());
  }
  return findings;
}

Findings ChecksNumbers(const Facts& f) {
  if (!IsDescribed(f)) return {};
  Findings findings;
  const int units = PluginOf(f).units_size();
  for (int u = 0; u < units; ++u) {
    const v1::Plugin::Unit& unit = PluginOf(f).units(u);
    const auto check = [&](const char* name, int64_t values, int64_t least) {
      if (values >= least && values <= kMaxValues) return;
      findings.push_back({absl::StrCat(name, " of unit ", unit.name(), " is ", values,
                                       " and must be between ", least, " and 2^24 values per token"),
                          kDescribeAgain, UnitField(u, name)});
    };
    check("saved_values", unit.saved_values(), 0);
    check("saved_values_selective", unit.saved_values_selective(), 0);
    check("workspace_values", unit.workspace_values(), 0);
    check("output_values", unit.output_values(), u + 1 < units ? 1 : 0);
    if (std::isfinite(unit.flops_per_token()) && unit.flops_per_token() >= 0 &&
        unit.flops_per_token() <= kMaxFlops) {
      continue;
    }
    findings.push_back({absl::StrCat("flops_per_token of unit ", unit.name(), " is ", unit.flops_per_token()),
                        "write a finite number that is not negative, or leave it out",
                        UnitField(u, "flops_per_token")});
  }
  return findings;
}

const Rule kRules[] = {
    {"plugin_path_absolute", kError, "model.plugin.path", "the plug-in's path must be absolute, without ..",
     [](const Facts& f) -> Findings {
       if (!f.job.model().has_plugin()) return {};
       if (absl::StartsWith(PluginOf(f).path(), "/")) return CheckPath(PluginOf(f).path());
       return {{absl::StrCat("'", PluginOf(f).path(),
                             "' is not the absolute path of a shared object on the nodes"),
                "write path: /where/the/nodes/have/it.so"}};
     }},
    {"plugin_description_unresolved", kError, "model.plugin.description",
     "the plug-in's description must be resolved by the client before submit",
     [](const Facts& f) -> Findings {
       if (PluginOf(f).description().empty()) return {};
       return {{absl::StrCat("'", PluginOf(f).description(),
                             "' is a path on the submitter's machine, which only the client can read"),
                "submit with fsdpctl, which sends the content of the file, or write it in model.plugin"}};
     }},
    {"plugin_vocab_size_range", kError, "model.plugin.vocab_size",
     "vocab_size must be positive and at most 2^24",
     [](const Facts& f) -> Findings {
       const int64_t vocab = PluginOf(f).vocab_size();
       if (!f.job.model().has_plugin() || !PluginOf(f).description().empty()) return {};
       if (!PluginOf(f).has_vocab_size()) return Missing("vocab_size", kDescribeAgain);
       return CheckRange(vocab, 1, kMaxVocab, "vocab_size", kDescribeAgain);
     }},
    {"plugin_sequence_range", kError, "model.plugin.max_sequence_length",
     "max_sequence_length must not be negative (0: any)",
     [](const Facts& f) -> Findings {
       if (PluginOf(f).max_sequence_length() >= 0) return {};
       return {{absl::StrCat("max_sequence_length is ", PluginOf(f).max_sequence_length()), kDescribeAgain}};
     }},
    {"plugin_units_count", kError, "model.plugin.units", "a plug-in model must have 2 to 1026 units",
     ChecksUnits},
    {"plugin_names", kError, "model.plugin.units",
     "names of units and of parameters must be valid and unique", ChecksNames},
    {"plugin_params", kError, "model.plugin.units",
     "parameter shapes must be positive, with at most 2^40 elements in total", ChecksParams},
    {"plugin_borrows", kError, "model.plugin.units",
     "a unit can borrow only from an earlier unit, which can lend once", ChecksBorrows},
    {"plugin_numbers", kError, "model.plugin.units", "sizes and costs of units must be in range",
     ChecksNumbers},
};

}  // namespace

absl::Span<const Rule> PluginRules() { return kRules; }

}  // namespace fsdpd
