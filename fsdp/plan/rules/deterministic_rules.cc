// Rules of train.deterministic: notes and warnings about its cost and limits; nothing is rejected.
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

constexpr ViolationLevel kWarn = ViolationLevel::kWarn;

bool IsDeterministic(const Facts& f) { return f.job.train().deterministic(); }

const Rule kRules[] = {
    {"deterministic_slows_attention", kWarn, "train.deterministic",
     "deterministic attention is slower and needs more memory on GPUs",
     [](const Facts& f) -> Findings {
       if (!IsDeterministic(f) || f.job.resources().device() == v1::DEVICE_CPU) return {};
       if (!f.IsValid({"precision.compute", "resources.device"}) || f.compute() == DType::kFp32) return {};
       return {{"deterministic attention takes longer, and more memory in backward",
                "no action is needed; `fsdpctl plan` predicts the step time"}};
     }},
    {"deterministic_plugin", kWarn, "train.deterministic", "the determinism of plug-in kernels is unknown",
     [](const Facts& f) -> Findings {
       if (!IsDeterministic(f) || !f.job.model().has_plugin()) return {};
       return {{"LibTorch operators are deterministic or fail, but the plug-in's own kernels may not be",
                "run the job twice and compare losses and gradient norms"}};
     }},
    {"deterministic_elastic", kWarn, "train.deterministic",
     "results depend on the number of ranks, which restart.elastic changes",
     [](const Facts& f) -> Findings {
       if (!IsDeterministic(f) || !f.job.restart().has_elastic()) return {};
       return {{"fewer ranks sum in another order, so results match only runs that shrank at the same step",
                "leave restart.elastic out if results must be bitwise reproducible"}};
     }},
};

}  // namespace

const std::vector<Rule>& DeterministicRules() {
  static const auto* rules = new std::vector<Rule>(std::begin(kRules), std::end(kRules));
  return *rules;
}

}  // namespace fsdpd
