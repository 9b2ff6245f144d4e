#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <set>

#include "base/spec_text/nccl_env.h"
#include "base/spec_text/rank_env.h"
#include "base/text.h"
#include "fsdp/plan/rules/rule_table.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

std::string At(int index, const char* what) { return absl::StrCat("env[", index, "].", what); }

// Checks one variable; returns no finding if it is valid.
using Judge = Finding (*)(const v1::Variable& variable);

Findings Each(const Facts& f, const char* what, Judge judge) {
  Findings findings;
  for (int i = 0; i < f.job.env_size(); ++i) {
    Finding finding = judge(f.job.env(i));
    if (finding.reason.empty()) continue;
    finding.field = At(i, what);
    findings.push_back(std::move(finding));
  }
  return findings;
}

// Only checked if nothing else is wrong.
bool IsName(const v1::Variable& variable) { return WhyNoEnvName(variable.name()).empty(); }

Finding NameIsOne(const v1::Variable& variable) {
  const std::string why = WhyNoEnvName(variable.name());
  if (why.empty()) return {};
  const size_t equals = variable.name().find('=');
  return {absl::StrCat("the name ", why),
          equals == std::string::npos ? "write a name such as NCCL_DEBUG"
                                      : "write the value apart from the name, such as NCCL_DEBUG: INFO"};
}

Finding ValueIsOne(const v1::Variable& variable) {
  const std::string why = WhyNoEnvValue(variable.value());
  if (why.empty()) return {};
  return {absl::StrCat("the value ", why), "write a shorter value, or pass a file name"};
}

Finding NotTheDaemons(const v1::Variable& variable) {
  const std::string why = WhyReservedEnv(variable.name(), variable.value());
  if (why.empty()) return {};
  return {absl::StrCat(variable.name(), " is reserved: ", why), "leave it out"};
}

Finding NcclKnowsIt(const v1::Variable& variable) {
  const std::string& name = variable.name();
  if (!IsName(variable) || !absl::StartsWith(name, "NCCL_")) return {};
  const std::vector<std::string> names(NcclEnvNames().begin(), NcclEnvNames().end());
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  const std::string nearest = Nearest(name, names);
  return {absl::StrCat("NCCL 2.28 does not know ", name, " and would ignore it"),
          nearest.empty() ? "look it up in NCCL's list of environment variables, or leave it out"
                          : absl::StrCat("write ", nearest)};
}

Finding Allowed(const v1::Variable& variable) {
  if (!IsName(variable) || !WhyReservedEnv(variable.name(), variable.value()).empty()) return {};
  if (!NcclKnowsIt(variable).reason.empty()) return {};
  const std::string why = WhyNeedsAllowEnv(variable.name());
  if (why.empty()) return {};
  return {absl::StrCat(variable.name(), " ", why,
                       ": ranks with this variable run only on agents with --allow-env ", variable.name()),
          absl::StrCat("start the agents with --allow-env ", variable.name(), ", or leave it out")};
}

Findings Once(const Facts& f) {
  Findings findings;
  std::set<std::string> names;
  for (int i = 0; i < f.job.env_size(); ++i) {
    const std::string& name = f.job.env(i).name();
    if (names.insert(name).second) continue;
    findings.push_back({absl::StrCat(name, " is set twice"), "keep one of them", At(i, "name")});
  }
  return findings;
}

Findings NotTooMany(const Facts& f) {
  if (f.job.env_size() <= kMaxRankEnvVariables) return {};
  return {
      {absl::StrCat("has ", f.job.env_size(), " variables; at most ", kMaxRankEnvVariables, " are allowed"),
       "leave out variables that the ranks do not read"}};
}

const Rule kRules[] = {
    {"env_variables", kError, "env", "env must have at most 256 variables", NotTooMany},
    {"env_name", kError, "env", "names in env must be valid variable names",
     [](const Facts& f) { return Each(f, "name", NameIsOne); }},
    {"env_name_once", kError, "env", "a name can be set only once", Once},
    {"env_value", kError, "env", "values in env must not contain NUL and have at most 4096 bytes",
     [](const Facts& f) { return Each(f, "value", ValueIsOne); }},
    {"env_of_the_daemon", kError, "env", "env cannot set variables that fsdpd sets",
     [](const Facts& f) { return Each(f, "name", NotTheDaemons); }},
    {"env_nccl_unknown", kError, "env", "names in env that start with NCCL_ must be NCCL variables",
     [](const Facts& f) { return Each(f, "name", NcclKnowsIt); }},
    {kEnvNeedsPermission, kWarn, "env",
     "variables that load a library, write a file or are not known to be harmless need an agent that allows "
     "them",
     [](const Facts& f) { return Each(f, "name", Allowed); }},
};

}  // namespace

absl::Span<const Rule> EnvRules() { return kRules; }

}  // namespace fsdpd
