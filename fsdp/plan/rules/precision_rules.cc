// Rules of precision.
#include <absl/strings/str_cat.h>

#include <cmath>

#include "fsdp/plan/rules/rule_table.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

constexpr char kWiderTypes[] = "write fp32 or bf16, or leave it out";

Findings NotFp16(v1::DType dtype, const char* why) {
  if (dtype == v1::DTYPE_FP8) return {{"gradients in fp8 are not supported", kWiderTypes}};
  if (dtype != v1::DTYPE_FP16) return {};
  return {{why, kWiderTypes}};
}

Findings ChecksFp16Moments(const Facts& f) {
  if (f.job.precision().moments() != v1::DTYPE_FP16) return {};
  return {{"squares of small gradients underflow in fp16",
           MomentsMayBeFp8(f.job.optimizer()) ? "write fp32, bf16 or fp8, or leave it out" : kWiderTypes}};
}

Findings ChecksFp8Moments(const Facts& f) {
  if (f.job.precision().moments() != v1::DTYPE_FP8) return {};
  if (f.job.optimizer().has_sgd())
    return {{"fp8 moments are not supported with SGD, whose momentum can exceed their range", kWiderTypes}};
  if (!f.IsValid({"optimizer.clip_norm"}) || MomentsMayBeFp8(f.job.optimizer())) return {};
  const double clip = f.job.optimizer().clip_norm();
  const std::string what = clip == 0 ? "gradients are not clipped" : absl::StrCat("clip_norm is ", clip);
  return {{absl::StrCat(what, ", and fp8 moments support gradient norms up to ", kFp8MomentNorm),
           "write optimizer.clip_norm: 1.0, or precision.moments: bf16"}};
}

// With gradients of constant scale, steps are 2% longer on average at beta2 0.95 and 3% at 0.999; if
// gradients shrink to 1/50 over 8,000 steps, 15% at 0.999 (simulated, 20,000 elements).
Findings ChecksFp8MomentsForget(const Facts& f) {
  constexpr double kMostBeta = 0.99;
  const v1::AdamW& adamw = f.job.optimizer().adamw();
  if (f.job.precision().moments() != v1::DTYPE_FP8 || !f.IsValid({"optimizer.adamw.betas"})) return {};
  if (adamw.betas_size() < 2 || adamw.betas(1) <= kMostBeta || adamw.betas(1) >= 1) return {};
  return {{absl::StrCat("rounding errors of the second moment persist for ",
                        std::lround(1 / (1 - adamw.betas(1))), " steps at beta2 ", adamw.betas(1),
                        ", which makes updates a few percent larger, more if gradients shrink"),
           "write optimizer.adamw.betas: [0.9, 0.95], or precision.moments: bf16"}};
}

const Rule kRules[] = {
    {"dtype_known", kError, "precision", "precisions must be supported types",
     [](const Facts& f) -> Findings {
       const v1::Precision& precision = f.job.precision();
       Findings findings;
       for (const auto& [name, dtype] :
            {std::pair("compute", precision.compute()), std::pair("main_params", precision.main_params()),
             std::pair("main_grads", precision.main_grads()), std::pair("grad_comm", precision.grad_comm()),
             std::pair("moments", precision.moments())}) {
         if (v1::DType_IsValid(dtype)) continue;
         findings.push_back({absl::StrCat("number ", static_cast<int>(dtype), " is not a supported type"),
                             "write fp32 or bf16", absl::StrCat("precision.", name)});
       }
       return findings;
     }},
    {"main_params_fp32", kError, "precision.main_params", "main_params must be fp32",
     When{[](const Facts& f) {
            const v1::DType dtype = f.job.precision().main_params();
            return dtype == v1::DTYPE_BF16 || dtype == v1::DTYPE_FP16 || dtype == v1::DTYPE_FP8;
          },
          "only fp32 is supported: small updates would vanish in the rounding of a narrower type",
          "write fp32, or leave it out"}},
    {"main_grads_not_fp16", kError, "precision.main_grads", "main_grads must be fp32 or bf16",
     [](const Facts& f) {
       return NotFp16(f.job.precision().main_grads(), "sums of gradients can exceed fp16's range of 65504");
     }},
    {"grad_comm_not_fp16", kError, "precision.grad_comm", "grad_comm must be fp32 or bf16",
     [](const Facts& f) {
       return NotFp16(f.job.precision().grad_comm(), "scaled gradients can exceed fp16's range of 65504");
     }},
    {"moments_not_fp16", kError, "precision.moments", "moments must be fp32, bf16 or fp8", ChecksFp16Moments},
    {"fp8_moments_clipped", kError, "precision.moments",
     "fp8 moments require AdamW and clip_norm of at most 4", ChecksFp8Moments},
    {"fp8_moments_forget", kWarn, "precision.moments", "fp8 moments are inaccurate with beta2 above 0.99",
     ChecksFp8MomentsForget},
    {"main_grads_bf16_needs_shards", kError, "precision.main_grads",
     "bf16 main_grads require sharded gradients",
     When{
         [](const Facts& f) { return f.job.precision().main_grads() == v1::DTYPE_BF16 && !f.shards_grads(); },
         "this strategy accumulates unsharded gradients in fp32",
         "write fp32, or use strategy: optim_grads or optim_grads_params"}},
    {"main_grads_bf16_without_outer", kError, "precision.main_grads",
     "bf16 main_grads are not supported with fsdp.outer",
     When{[](const Facts& f) {
            return f.job.precision().main_grads() == v1::DTYPE_BF16 && f.outer_size() != 1;
          },
          "gradient shards are reduced over replicas in fp32", "write fp32, or leave fsdp.outer out"}},
    {"grad_comm_bf16_needs_shards", kError, "precision.grad_comm",
     "bf16 grad_comm requires sharded gradients",
     When{[](const Facts& f) { return f.job.precision().grad_comm() == v1::DTYPE_BF16 && !f.shards_grads(); },
          "this strategy reduces accumulated gradients in fp32",
          "write fp32, or use strategy: optim_grads or optim_grads_params"}},
    {"fp16_on_cpu_is_slow", kWarn, "precision.compute", "fp16 is slow on CPU",
     When{[](const Facts& f) {
            return f.compute() == DType::kFp16 && f.job.resources().device() == v1::DEVICE_CPU;
          },
          "CPUs convert fp16 to fp32 for every product", "fine for a test; else use fp32"}},
    {"loss_scale_range", kError, "precision.loss_scale",
     "the loss scale and its growth interval must be positive",
     [](const Facts& f) -> Findings {
       const v1::Precision::LossScale& scale = f.job.precision().loss_scale();
       Findings findings;
       if (scale.has_initial() && (!std::isfinite(scale.initial()) || scale.initial() <= 0)) {
         findings.push_back({absl::StrCat("initial is ", scale.initial(), " and must be positive"),
                             "omit it (default: 65536)", "precision.loss_scale.initial"});
       }
       if (scale.has_growth_interval() && scale.growth_interval() < 1) {
         findings.push_back({absl::StrCat("growth_interval is ", scale.growth_interval(), " steps"),
                             "omit it (default: 2000)", "precision.loss_scale.growth_interval"});
       }
       return findings;
     }},
    {"loss_scale_without_fp16", kWarn, "precision.loss_scale",
     "loss_scale has no effect unless compute is fp16",
     When{[](const Facts& f) {
            return f.job.precision().has_loss_scale() && f.compute() != DType::kFp16 &&
                   f.IsValid({"precision.compute"});
          },
          "only fp16 needs loss scaling; the scale is not used", "leave loss_scale out"}},
};

}  // namespace

bool MomentsMayBeFp8(const v1::Optimizer& optimizer) {
  return !optimizer.has_sgd() && optimizer.clip_norm() > 0 && optimizer.clip_norm() <= kFp8MomentNorm;
}

absl::Span<const Rule> PrecisionRules() { return kRules; }

}  // namespace fsdpd
