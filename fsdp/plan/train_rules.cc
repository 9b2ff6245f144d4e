// train, optimizer, schedule and precision.
#include <absl/strings/str_cat.h>

#include <cmath>

#include "base/text.h"
#include "fsdp/plan/rule_table.h"

namespace fsdpd {
namespace {

constexpr FaultLevel kError = FaultLevel::kError;
constexpr FaultLevel kWarn = FaultLevel::kWarn;

constexpr int64_t kMaxSteps = 1000000000;
constexpr int64_t kMaxMicroBatch = 1 << 20;
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 31;
constexpr int64_t kMaxMicroBatchTokens = 1 << 24;

// A step's program has six instructions for each; this keeps a Plan message below kMaxRpcBytes.
constexpr int64_t kMaxUnitRuns = 32768;

int64_t Warmup(const v1::Schedule& schedule) {
  switch (schedule.shape_case()) {
    case v1::Schedule::kCosine:
      return schedule.cosine().warmup_steps();
    case v1::Schedule::kLinear:
      return schedule.linear().warmup_steps();
    default:
      return schedule.constant().warmup_steps();
  }
}

std::string ShapeField(const v1::Schedule& schedule, const char* name) {
  switch (schedule.shape_case()) {
    case v1::Schedule::kCosine:
      return absl::StrCat("schedule.cosine.", name);
    case v1::Schedule::kLinear:
      return absl::StrCat("schedule.linear.", name);
    default:
      return absl::StrCat("schedule.constant.", name);
  }
}

Findings OnlyFp32(v1::DType dtype, const char* what) {
  if (dtype == v1::DTYPE_UNSPECIFIED || dtype == v1::DTYPE_FP32 || !v1::DType_IsValid(dtype)) return {};
  return {{what, "write fp32, or leave it out"}};
}

Findings KnownDType(v1::DType dtype, const char* name) {
  if (v1::DType_IsValid(dtype)) return {};
  return {{absl::StrCat("number ", static_cast<int>(dtype), " is no known type"), "write fp32 or bf16",
           absl::StrCat("precision.", name)}};
}

Findings NotNegative(double value, const char* name, const char* meaning) {
  if (std::isfinite(value) && value >= 0) return {};
  return {{absl::StrCat(name, " is ", value, " and must be 0 or a positive, finite number"), meaning}};
}

const Rule kRules[] = {
    {"steps_range", kError, "train.steps", "steps is positive and at most 10^9",
     [](const Facts& f) -> Findings {
       const int64_t steps = f.job.train().steps();
       if (steps >= 1 && steps <= kMaxSteps) return {};
       return {{absl::StrCat("steps is ", steps, " and must be between 1 and ", kMaxSteps),
                "write how many optimizer steps to take, for example steps: 1000"}};
     }},
    {"micro_batch_range", kError, "train.micro_batch", "micro_batch is positive and at most 2^20",
     [](const Facts& f) -> Findings {
       const int64_t size = f.job.train().micro_batch();
       if (size >= 0 && size <= kMaxMicroBatch) return {};
       return {{absl::StrCat("micro_batch is ", size, " and must be between 1 and ", kMaxMicroBatch),
                "leave it out for 1"}};
     }},
    {"micro_batch_tokens", kError, "train.micro_batch",
     "micro_batch x sequence_length is at most 2^24 tokens",
     [](const Facts& f) -> Findings {
       if (!f.Sound({"train.micro_batch", "data.sequence_length"})) return {};
       const int64_t tokens = f.micro_batch() * f.job.data().sequence_length();
       if (tokens <= kMaxMicroBatchTokens) return {};
       return {{absl::StrCat("one rank would pass ", tokens, " tokens through the model at once; at most ",
                             kMaxMicroBatchTokens, " are allowed"),
                absl::StrCat("write micro_batch: ",
                             std::max<int64_t>(1, kMaxMicroBatchTokens / f.job.data().sequence_length()),
                             " or less; global_batch keeps its size by accumulation")}};
     }},
    {"global_batch_range", kError, "train.global_batch", "global_batch is positive and at most 2^31",
     [](const Facts& f) -> Findings {
       const int64_t size = f.job.train().global_batch();
       if (size >= 0 && size <= kMaxGlobalBatch) return {};
       return {{absl::StrCat("global_batch is ", size, " and must be between 1 and ", kMaxGlobalBatch),
                "leave it out for micro_batch x ranks"}};
     }},
    {"global_batch_divisible", kError, "train.global_batch",
     "global_batch is a multiple of micro_batch x ranks",
     [](const Facts& f) -> Findings {
       if (!f.Sound({"train.micro_batch", "train.global_batch", "resources"})) return {};
       const int64_t unit = f.micro_batch() * f.world();
       const int64_t batch = f.global_batch();
       if (batch % unit == 0) return {};
       const int64_t below = batch / unit * unit;
       return {{absl::StrCat("every rank must run equally many micro-batches: ", batch,
                             " samples do not split into ", f.world(), " ranks x ", f.micro_batch(),
                             " samples (", unit, " at a time)"),
                below == 0 ? absl::StrCat("write global_batch: ", unit, ", or use fewer ranks")
                           : absl::StrCat("write global_batch: ", below, " or ", below + unit)}};
     }},
    {"accumulation_bounded", kError, "train.global_batch", "micro-batches per step x units is at most 32768",
     [](const Facts& f) -> Findings {
       if (!f.Sound({"train", "resources", "model"})) return {};
       const int64_t count = f.global_batch() / (f.micro_batch() * f.world());
       const int64_t units = f.model().layers + 2;
       if (count * units <= kMaxUnitRuns) return {};
       return {{absl::StrCat("a step of ", count, " micro-batches over ", units, " units is a program of ",
                             6 * count * units, " instructions; at most ", 6 * kMaxUnitRuns, " are allowed"),
                absl::StrCat("use a larger micro_batch or more ranks, so that a step has at most ",
                             kMaxUnitRuns / units, " micro-batches")}};
     }},
    {"seed_not_negative", kError, "train.seed", "the seed is not negative",
     [](const Facts& f) -> Findings {
       if (f.job.train().seed() >= 0) return {};
       return {{absl::StrCat("the seed is ", f.job.train().seed(), " and cannot be negative"),
                "write a positive number, or leave it out for 1"}};
     }},
    {"lr_positive", kError, "optimizer.adamw.lr", "the learning rate is positive and finite",
     [](const Facts& f) -> Findings {
       const double lr = f.job.optimizer().adamw().lr();
       if (std::isfinite(lr) && lr >= 0) return {};
       return {
           {absl::StrCat("lr is ", lr, " and must be a positive, finite number"), "leave it out for 3e-4"}};
     }},
    {"betas_are_two", kError, "optimizer.adamw.betas", "betas are exactly two",
     [](const Facts& f) -> Findings {
       const int count = f.job.optimizer().adamw().betas_size();
       if (count == 0 || count == 2) return {};
       return {{absl::StrCat("AdamW has two decay rates and ", count, count == 1 ? " is" : " are", " given"),
                "write betas: [0.9, 0.95], or leave it out"}};
     }},
    {"betas_range", kError, "optimizer.adamw.betas", "each beta is at least 0 and below 1",
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
    {"eps_positive", kError, "optimizer.adamw.eps", "eps is positive and finite",
     [](const Facts& f) -> Findings {
       const double eps = f.job.optimizer().adamw().eps();
       if (std::isfinite(eps) && eps >= 0) return {};
       return {
           {absl::StrCat("eps is ", eps, " and must be a positive, finite number"), "leave it out for 1e-8"}};
     }},
    {"weight_decay_not_negative", kError, "optimizer.adamw.weight_decay", "weight_decay is not negative",
     [](const Facts& f) {
       return NotNegative(f.job.optimizer().adamw().weight_decay(), "weight_decay",
                          "write 0 for no decay, or leave it out for 0.1");
     }},
    {"clip_norm_not_negative", kError, "optimizer.clip_norm", "clip_norm is not negative",
     [](const Facts& f) {
       return NotNegative(f.job.optimizer().clip_norm(), "clip_norm",
                          "write 1.0, or leave it out to not clip");
     }},
    {"warmup_not_negative", kError, "schedule", "warmup_steps is not negative",
     [](const Facts& f) -> Findings {
       const v1::Schedule& schedule = f.job.schedule();
       if (Warmup(schedule) >= 0) return {};
       return {{absl::StrCat("warmup_steps is ", Warmup(schedule), " and cannot be negative"),
                "leave it out for no warm-up", ShapeField(schedule, "warmup_steps")}};
     }},
    {"warmup_below_steps", kError, "schedule", "warmup_steps is below steps",
     [](const Facts& f) -> Findings {
       const int64_t warmup = Warmup(f.job.schedule());
       if (!f.Sound({"train.steps"}) || warmup < f.job.train().steps()) return {};
       return {{absl::StrCat("the warm-up takes ", warmup, " steps and the job ends after ",
                             f.job.train().steps(), ": the peak learning rate would never be reached"),
                absl::StrCat("write warmup_steps: ", f.job.train().steps() / 10, ", or train for more steps"),
                ShapeField(f.job.schedule(), "warmup_steps")}};
     }},
    {"min_lr_ratio_range", kError, "schedule", "min_lr_ratio is between 0 and 1",
     [](const Facts& f) -> Findings {
       const v1::Schedule& schedule = f.job.schedule();
       const double ratio =
           schedule.has_cosine() ? schedule.cosine().min_lr_ratio() : schedule.linear().min_lr_ratio();
       if (ratio >= 0 && ratio <= 1) return {};
       return {{absl::StrCat("min_lr_ratio is ", ratio, ", the final learning rate over the peak"),
                "write a number between 0 and 1, for example 0.1", ShapeField(schedule, "min_lr_ratio")}};
     }},
    {"dtype_known", kError, "precision", "every precision is fp32 or bf16",
     [](const Facts& f) -> Findings {
       const v1::Precision& precision = f.job.precision();
       Findings findings;
       for (const Findings& part :
            {KnownDType(precision.compute(), "compute"), KnownDType(precision.main_params(), "main_params"),
             KnownDType(precision.main_grads(), "main_grads"),
             KnownDType(precision.grad_comm(), "grad_comm")}) {
         findings.insert(findings.end(), part.begin(), part.end());
       }
       return findings;
     }},
    {"main_params_fp32", kError, "precision.main_params", "main parameters are fp32",
     [](const Facts& f) {
       return OnlyFp32(
           f.job.precision().main_params(),
           "updates of a small learning rate vanish in bf16's 8 bits, so main parameters are fp32 only");
     }},
    {"main_grads_fp32", kError, "precision.main_grads", "main gradients are fp32",
     [](const Facts& f) {
       return OnlyFp32(
           f.job.precision().main_grads(),
           "micro-batches are summed in the main gradients, which bf16 would round each time: fp32 only");
     }},
    {"grad_comm_unsupported", kError, "precision.grad_comm", "gradients cross the wire in fp32",
     [](const Facts& f) {
       return OnlyFp32(f.job.precision().grad_comm(), "bf16 gradients on the wire are not supported yet");
     }},
    {"lr_is_large", kWarn, "optimizer.adamw.lr", "the learning rate is at most 0.1",
     [](const Facts& f) -> Findings {
       const double lr = f.job.optimizer().adamw().lr();
       if (!f.Sound({"optimizer.adamw.lr"}) || lr <= 0.1) return {};
       return {{absl::StrCat("lr is ", lr,
                             ": AdamW moves each parameter by about lr a step, and this usually diverges"),
                "language models use 1e-5 to 1e-2"}};
     }},
};

}  // namespace

const std::vector<Rule>& TrainRules() {
  static const auto* rules = new std::vector<Rule>(std::begin(kRules), std::end(kRules));
  return *rules;
}

}  // namespace fsdpd
