// Rules of train.deterministic: notes and warnings about its cost and limits; nothing is rejected.
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

constexpr FaultLevel kWarn = FaultLevel::kWarn;

bool IsDeterministic(const Facts& f) { return f.job.train().deterministic(); }

const Rule kRules[] = {
    {"deterministic_slows_attention", kWarn, "train.deterministic",
     "on GPUs the same bits on every run have their price",
     [](const Facts& f) -> Findings {
       if (!IsDeterministic(f) || f.job.resources().device() == v1::DEVICE_CPU) return {};
       if (!f.IsValid({"precision.compute", "resources.device"}) || f.compute() == DType::kFp32) return {};
       return {
           {"attention keeps an order in its sums, which takes longer, and more memory in backward",
            "nothing has to be done: `fsdpctl plan` says what a step takes; without it two runs part ways "
            "in their last bits"}};
     }},
    {"deterministic_plugin", kWarn, "train.deterministic", "the model's kernels are known to keep an order",
     [](const Facts& f) -> Findings {
       if (!IsDeterministic(f) || !f.job.model().has_plugin()) return {};
       return {
           {"LibTorch's operators keep an order in their sums, or fail where they have none; whether the "
            "plug-in's own kernels do is not known",
            "run the job twice, and compare losses and gradient norms"}};
     }},
    {"deterministic_elastic", kWarn, "train.deterministic", "the job keeps its number of ranks",
     [](const Facts& f) -> Findings {
       if (!IsDeterministic(f) || !f.job.restart().has_elastic()) return {};
       return {
           {"fewer ranks add up in another order: the bits are those of a run that lost as many after the "
            "same step",
            "leave restart.elastic out where bits have to be the same"}};
     }},
};

}  // namespace

const std::vector<Rule>& DeterministicRules() {
  static const auto* rules = new std::vector<Rule>(std::begin(kRules), std::end(kRules));
  return *rules;
}

}  // namespace fsdpd
