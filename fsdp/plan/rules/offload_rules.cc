// Rules of fsdp.offload, and of fsdp.memory, which may choose offload. Optimizer offload supports every
// model; activation offload requires one pipeline stage and layers whose saved tensors the planner knows.
#include <absl/strings/str_cat.h>

#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

int64_t LayersOf(const Facts& f) { return f.job.fsdp().offload().activation_layers(); }

bool HasState(const Facts& f) {
  return !f.job.optimizer().has_sgd() || f.job.optimizer().sgd().momentum() != 0;
}

const Rule kRules[] = {
    {"offload_on_cpu", kWarn, "fsdp.offload", "offload has no effect on CPU ranks",
     [](const Facts& f) -> Findings {
       const bool of_state = f.job.fsdp().offload().optimizer() && HasState(f);
       const bool may = f.job.fsdp().memory() == v1::MEMORY_RECOMPUTE_OR_OFFLOAD;
       if (!of_state && LayersOf(f) <= 0 && !may) return {};
       if (f.job.resources().device() != v1::DEVICE_CPU) return {};
       return {
           {"on CPU everything is in host memory, so offload saves nothing, and the planned peak excludes "
            "offloaded bytes",
            "leave it out, except to test a GPU job on CPU",
            of_state          ? "fsdp.offload.optimizer"
            : LayersOf(f) > 0 ? "fsdp.offload.activation_layers"
                              : "fsdp.memory"}};
     }},
    {"offload_without_state", kAdjust, "fsdp.offload.optimizer",
     "offload.optimizer has no effect without optimizer state",
     When{[](const Facts& f) { return f.job.fsdp().offload().optimizer() && !HasState(f); },
          "SGD without momentum has no state", "leave it out", "true", "false"}},
    {"offload_layers_range", kError, "fsdp.offload.activation_layers",
     "activation_layers must not be negative", NotNegative("leave it out to offload none")},
    {"offload_layers_above_model", kAdjust, "fsdp.offload.activation_layers",
     "activation_layers above the number of layers has no effect",
     [](const Facts& f) -> Findings {
       if (!f.ModelIsKnown() || LayersOf(f) <= f.layers()) return {};
       return {{absl::StrCat("the model has ", f.layers(), " layers"),
                absl::StrCat("write ", f.layers(), " or less"), "", absl::StrCat(LayersOf(f)),
                absl::StrCat(f.layers())}};
     }},
    {"offload_layers_of_llama", kError, "fsdp.offload.activation_layers",
     "activation offload supports only dense models of the Llama family",
     [](const Facts& f) -> Findings {
       if (LayersOf(f) <= 0 || !f.ModelIsKnown()) return {};
       const std::string why = WhyLayersStay(f.model());
       if (why.empty()) return {};
       return {{why, "leave it out; fsdp.recompute: full saves the most device memory"}};
     }},
    {"offload_layers_in_stages", kError, "fsdp.offload.activation_layers",
     "activation offload is not supported with parallel.pipeline",
     When{[](const Facts& f) { return LayersOf(f) > 0 && f.job.parallel().pipeline() > 1; },
          "a pipeline stage has several micro-batches in flight, whose activations are needed in another "
          "order",
          "leave out parallel.pipeline or activation_layers"}},
    {"memory_known", kError, "fsdp.memory", "memory must be recompute or recompute_or_offload",
     Known("write memory: recompute or recompute_or_offload")},
};

}  // namespace

absl::Span<const Rule> OffloadRules() { return kRules; }

}  // namespace fsdpd
