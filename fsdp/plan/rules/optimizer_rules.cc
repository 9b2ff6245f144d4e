// Rules of optimizer.
#include <absl/strings/str_cat.h>

#include <cmath>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

bool MatchesAny(const std::vector<std::string>& names, const std::string& pattern) {
  for (const std::string& name : names) {
    if (MatchesPattern(name, pattern)) return true;
  }
  return false;
}

Findings ChecksGroups(const Facts& f) {
  Findings findings;
  std::vector<std::string> names;
  if (f.ModelIsKnown()) names = f.param_names();
  for (int i = 0; i < f.job.optimizer().groups_size(); ++i) {
    const v1::ParamGroup& group = f.job.optimizer().groups(i);
    const std::string field = absl::StrCat("optimizer.groups[", i, "]");
    if (group.params().empty()) {
      findings.push_back({"the group lists no parameters", "write params: [PATTERN]", field + ".params"});
    }
    for (int p = 0; p < group.params_size() && !names.empty(); ++p) {
      if (MatchesAny(names, group.params(p))) continue;
      findings.push_back({absl::StrCat("'", group.params(p), "' matches no parameter; examples of names: ",
                                       names.front(), " and ", names[names.size() / 2]),
                          "write a full name or a pattern with *, e.g. *.attention.*",
                          absl::StrCat(field, ".params[", p, "]")});
    }
    for (const auto& [name, value] :
         {std::pair("weight_decay", group.weight_decay()), std::pair("lr_scale", group.lr_scale())}) {
      AddFindings(CheckNotNegative(value, name, "omit it (default: the optimizer's own)"),
                  absl::StrCat(field, ".", name), &findings);
    }
  }
  return findings;
}

const Rule kRules[] = {
    {"one_optimizer", kError, "optimizer", "at most one of adamw and sgd can be set",
     When{[](const Facts& f) { return f.job.optimizer().has_adamw() && f.job.optimizer().has_sgd(); },
          "both adamw and sgd are set", "leave one out"}},
    {"lr_positive", kError, "optimizer.adamw.lr", "the learning rate must be positive and finite",
     Positive("omit it (default: 3e-4)")},
    {"betas_are_two", kError, "optimizer.adamw.betas", "betas must have exactly two entries",
     [](const Facts& f) -> Findings {
       if (!f.IsValid({"optimizer.adamw.betas"})) return {};
       const int count = f.job.optimizer().adamw().betas_size();
       if (count == 0 || count == 2) return {};
       return {{absl::StrCat("AdamW has two decay rates and ", count, count == 1 ? " is" : " are", " given"),
                "write betas: [0.9, 0.95], or leave it out"}};
     }},
    {"betas_range", kError, "optimizer.adamw.betas", "each beta must be at least 0 and below 1",
     [](const Facts& f) -> Findings {
       Findings findings;
       const auto& betas = f.job.optimizer().adamw().betas();
       for (int i = 0; i < betas.size(); ++i) {
         if (betas[i] >= 0 && betas[i] < 1) continue;
         findings.push_back(
             {absl::StrCat("the decay rate is ", betas[i], " and must be at least 0 and below 1"),
              i == 0 ? "write for example 0.9" : "write for example 0.95",
              absl::StrCat("optimizer.adamw.betas[", i, "]")});
       }
       return findings;
     }},
    {"eps_positive", kError, "optimizer.adamw.eps", "eps must be positive and finite",
     // With 0, a parameter whose gradient was always zero divides zero by zero.
     Positive("omit it (default: 1e-8)")},
    {"weight_decay_not_negative", kError, "optimizer.adamw.weight_decay", "weight_decay must not be negative",
     NotNegative("write 0 for no decay, or omit it (default: 0.1)")},
    {"clip_norm_not_negative", kError, "optimizer.clip_norm", "clip_norm must not be negative",
     NotNegative("write 1.0, or leave it out to not clip")},
    {"sgd_lr_positive", kError, "optimizer.sgd.lr", "the learning rate must be positive and finite",
     [](const Facts& f) -> Findings {
       const double lr = f.job.optimizer().sgd().lr();
       if (!f.job.optimizer().has_sgd() || (std::isfinite(lr) && lr > 0)) return {};
       if (!f.job.optimizer().sgd().has_lr()) return Missing("lr", "write for example lr: 0.1");
       return {{absl::StrCat("lr is ", lr, " and must be a positive, finite number; SGD has no usual one"),
                "write for example lr: 0.1"}};
     }},
    {"momentum_range", kError, "optimizer.sgd.momentum", "momentum must be at least 0 and below 1",
     [](const Facts& f) -> Findings {
       const double momentum = f.job.optimizer().sgd().momentum();
       if (momentum >= 0 && momentum < 1) return {};
       return {{absl::StrCat("momentum is ", momentum, " and must be at least 0 and below 1"),
                "write for example 0.9, or omit it (default: none)"}};
     }},
    {"nesterov_needs_momentum", kError, "optimizer.sgd.nesterov", "nesterov requires momentum",
     When{[](const Facts& f) {
            return f.job.optimizer().sgd().nesterov() && f.job.optimizer().sgd().momentum() == 0 &&
                   f.IsValid({"optimizer.sgd.momentum"});
          },
          "Nesterov momentum needs momentum above 0", "write momentum: 0.9"}},
    {"sgd_weight_decay_not_negative", kError, "optimizer.sgd.weight_decay",
     "weight_decay must not be negative", NotNegative("omit it (default: no decay)")},
    {"groups_sound", kError, "optimizer.groups", "each group must match parameters and have valid values",
     ChecksGroups},
    {"lr_is_large", kWarn, "optimizer.adamw.lr", "a learning rate above 0.1 usually diverges",
     [](const Facts& f) -> Findings {
       const double lr = f.job.optimizer().adamw().lr();
       if (!f.IsValid({"optimizer.adamw.lr"}) || lr <= 0.1) return {};
       return {
           {absl::StrCat("lr is ", lr,
                         "; AdamW changes each parameter by about lr per step, so training usually diverges"),
            "use 1e-5 to 1e-2 for language models"}};
     }},
};

}  // namespace

absl::Span<const Rule> OptimizerRules() { return kRules; }

}  // namespace fsdpd
