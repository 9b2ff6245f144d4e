// fsdp.offload: nothing of it is refused; where it gains nothing is told.
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

constexpr FaultLevel kAdjust = FaultLevel::kAdjust;
constexpr FaultLevel kWarn = FaultLevel::kWarn;

const Rule kRules[] = {
    {"offload_without_state", kAdjust, "fsdp.offload.optimizer", "what is offloaded is there",
     [](const Facts& f) -> Findings {
       const v1::Optimizer& optimizer = f.job.optimizer();
       if (!f.job.fsdp().offload().optimizer()) return {};
       if (!optimizer.has_sgd() || optimizer.sgd().momentum() != 0) return {};
       return {{"SGD without momentum keeps no state", "leave it out", "", "true", "false"}};
     }},
    {"offload_on_cpu", kWarn, "fsdp.offload.optimizer", "what is offloaded leaves a device",
     [](const Facts& f) -> Findings {
       if (!f.job.fsdp().offload().optimizer() || f.job.resources().device() != v1::DEVICE_CPU) return {};
       return {
           {"ranks on CPU have all in host memory: nothing is saved, and the peak that is planned leaves out "
            "what it calls the host's",
            "leave it out, but to try on CPU what is to run on GPUs"}};
     }},
};

}  // namespace

const std::vector<Rule>& OffloadRules() {
  static const auto* rules = new std::vector<Rule>(std::begin(kRules), std::end(kRules));
  return *rules;
}

}  // namespace fsdpd
