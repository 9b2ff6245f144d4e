// Rules of train.deterministic: its cost and limits.
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

bool IsDeterministic(const Facts& f) { return f.job.train().deterministic(); }

const Rule kRules[] = {
    {"deterministic_slows_attention", kWarn, "train.deterministic",
     "deterministic attention is slower and needs more memory on GPUs",
     When{[](const Facts& f) {
            return IsDeterministic(f) && !f.job.model().has_package() &&
                   f.job.resources().device() != v1::DEVICE_CPU &&
                   f.IsValid({"precision.compute", "resources.device"}) && f.compute() != DType::kFp32;
          },
          "deterministic attention takes longer, and more memory in backward",
          "no action is needed; `fsdpctl plan` predicts the step time"}},
    {"deterministic_plugin", kWarn, "train.deterministic",
     "the determinism of a plug-in's kernels is unknown",
     When{[](const Facts& f) { return IsDeterministic(f) && f.job.model().has_plugin(); },
          "LibTorch operators are deterministic or fail, but the model's own kernels may not be",
          "run the job twice and compare losses and gradient norms"}},
    {"deterministic_package", kError, "train.deterministic",
     "train.deterministic is not supported with packages for GPUs",
     When{[](const Facts& f) {
            return IsDeterministic(f) && f.job.model().has_package() &&
                   f.job.model().package().device() == v1::DEVICE_CUDA;
          },
          "kernels of a package sum gradients of embeddings and attention in an unspecified order",
          "leave train.deterministic out, or train a built-in model"}},
    {"deterministic_elastic", kWarn, "train.deterministic",
     "results depend on the number of ranks, which restart.elastic changes",
     When{[](const Facts& f) { return IsDeterministic(f) && f.job.restart().has_elastic(); },
          "fewer ranks sum in another order, so results match only runs that shrank at the same step",
          "leave restart.elastic out if results must be bitwise reproducible"}},
};

}  // namespace

absl::Span<const Rule> DeterministicRules() { return kRules; }

}  // namespace fsdpd
