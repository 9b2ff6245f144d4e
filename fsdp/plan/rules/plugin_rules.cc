// Rules of model.plugin: the plug-in's description of itself is untrusted input.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <cmath>

#include "fsdp/plan/rules/described_rules.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxValues = 1 << 24;
constexpr double kMaxFlops = 1e15;

constexpr char kDescribeAgain[] = "make the description again: fsdpd-rank --describe-plugin PATH";

const v1::Plugin& PluginOf(const Facts& f) { return f.job.model().plugin(); }

// The units are present, or the client will read them from the plug-in.
bool IsDescribed(const Facts& f) {
  return f.job.model().has_plugin() && PluginOf(f).description().empty() && f.IsValid({"model.plugin.units"});
}

std::string UnitField(int unit, const char* name) {
  return absl::StrCat("model.plugin.units[", unit, "].", name);
}

DescribedUnits UnitsOf(const Facts& f) {
  DescribedUnits units;
  if (!IsDescribed(f)) return units;
  for (const v1::Plugin::Unit& from : PluginOf(f).units()) {
    DescribedUnit& unit = units.emplace_back();
    unit.field = absl::StrCat("model.plugin.units[", units.size() - 1, "]");
    unit.name = unit.module = from.name();
    unit.tied_to = from.tied_to();
    unit.params_field = unit.field + ".params";
    for (const v1::Plugin::Param& param : from.params())
      unit.params.push_back({&param.name(), &param.shape()});
  }
  return units;
}

Findings ChecksNumbers(const Facts& f) {
  if (!IsDescribed(f)) return {};
  Findings findings;
  const int units = PluginOf(f).units_size();
  for (int u = 0; u < units; ++u) {
    const v1::Plugin::Unit& unit = PluginOf(f).units(u);
    const auto check = [&](const char* name, int64_t values, int64_t least) {
      if (values >= least && values <= kMaxValues) return;
      findings.push_back({absl::StrCat(name, " of unit ", ShownName(unit.name()), " is ", values,
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
    findings.push_back(
        {absl::StrCat("flops_per_token of unit ", ShownName(unit.name()), " is ", unit.flops_per_token()),
         "write a finite number that is not negative, or leave it out", UnitField(u, "flops_per_token")});
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
       return CheckRange(vocab, 1, kMaxDescribedVocab, "vocab_size", kDescribeAgain);
     }},
    {"plugin_sequence_range", kError, "model.plugin.max_sequence_length",
     "max_sequence_length must not be negative (0: any)",
     [](const Facts& f) -> Findings {
       if (PluginOf(f).max_sequence_length() >= 0) return {};
       return {{absl::StrCat("max_sequence_length is ", PluginOf(f).max_sequence_length()), kDescribeAgain}};
     }},
    {"plugin_units_count", kError, "model.plugin.units", "a plug-in model must have 2 to 1026 units",
     [](const Facts& f) -> Findings {
       if (!f.job.model().has_plugin() || !PluginOf(f).description().empty()) return {};
       return CheckUnitCount(PluginOf(f).units_size(),
                             "set description to a file with the output of `fsdpd-rank --describe-plugin "
                             "PATH`, which lists the units");
     }},
    {"plugin_names", kError, "model.plugin.units",
     "names of units and of parameters must be valid and unique",
     [](const Facts& f) { return CheckNames(UnitsOf(f)); }},
    {"plugin_params", kError, "model.plugin.units",
     "parameter shapes must be positive, with at most 2^40 elements in total",
     [](const Facts& f) { return CheckParams(UnitsOf(f), "model.plugin.units", kDescribeAgain); }},
    {"plugin_borrows", kError, "model.plugin.units",
     "a unit can borrow only from an earlier unit, which can lend once",
     [](const Facts& f) { return CheckTiedUnits(UnitsOf(f)); }},
    {"plugin_numbers", kError, "model.plugin.units", "sizes and costs of units must be in range",
     ChecksNumbers},
};

}  // namespace

absl::Span<const Rule> PluginRules() { return kRules; }

}  // namespace fsdpd
