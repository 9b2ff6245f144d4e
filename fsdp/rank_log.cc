#include "fsdp/rank_log.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "fsdp/engine/agreement.h"

namespace fsdpd {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

const char* NameOf(DType dtype) { return dtype == DType::kBf16 ? "bf16" : "fp32"; }

std::string DataText(const Spec& spec) {
  if (spec.data.tokens.empty()) return absl::StrCat("synthetic, vocab ", spec.data.synthetic_vocab);
  std::string text;
  for (const TokenSource& file : spec.data.tokens) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", file.path, " x", file.weight);
  }
  return text;
}

std::string ScheduleText(const ScheduleConfig& schedule) {
  const char* shape = schedule.shape == ScheduleShape::kCosine   ? "cosine"
                      : schedule.shape == ScheduleShape::kLinear ? "linear"
                                                                 : "constant";
  return absl::StrFormat("%s, warmup %d steps, min lr ratio %g", shape, schedule.warmup_steps,
                         schedule.min_lr_ratio);
}

Rows RowsOf(const Plan& plan, const v1::RankLaunch& launch) {
  const Spec& spec = plan.spec;
  const LlamaConfig& model = spec.model;
  return {
      {"job", absl::StrFormat("%s, attempt %d", launch.job_id(), launch.attempt())},
      {"rank",
       absl::StrFormat("%d of %d on %s", launch.rank(), launch.world(),
                       spec.device == DeviceKind::kCuda ? absl::StrCat("cuda:", launch.device()) : "cpu")},
      {"model", absl::StrFormat("%s parameters: %d layers, hidden %d, ffn %d, heads %d/%d, vocab %d",
                                HumanCount(static_cast<double>(plan.layout.elements())), model.layers,
                                model.hidden_size, model.intermediate_size, model.heads, model.kv_heads,
                                model.vocab_size)},
      {"data", DataText(spec)},
      {"sequence_length", absl::StrCat(spec.data.sequence_length)},
      {"steps", absl::StrCat(spec.steps)},
      {"batch", absl::StrFormat("%d samples: %d micro-batches of %d on each of %d ranks", spec.global_batch,
                                spec.micro_batches_per_step(), spec.micro_batch, spec.world)},
      {"seed", absl::StrCat(spec.seed)},
      {"adamw", absl::StrFormat("lr %g, betas %g %g, eps %g, weight decay %g", spec.adamw.lr,
                                spec.adamw.beta1, spec.adamw.beta2, spec.adamw.eps, spec.adamw.weight_decay)},
      {"clip_norm", spec.clip_norm > 0 ? absl::StrFormat("%g", spec.clip_norm) : "none"},
      {"schedule", ScheduleText(spec.schedule)},
      {"precision",
       absl::StrFormat("compute %s, gradients on the wire %s", NameOf(spec.compute), NameOf(spec.grad_comm))},
      {"strategy", spec.strategy == Strategy::kNoShard ? "no_shard" : "optim_grads_params"},
      {"prefetch", HumanBytes(spec.prefetch_bytes)},
      {"recompute", spec.recompute == Recompute::kFull ? "full" : "none"},
      {"program", absl::StrFormat("%d instructions, hash %s", plan.program.instructions.size(),
                                  HashText(plan.program.hash))},
      {"planned memory", absl::StrFormat("%s at the peak, %s of it arena", HumanBytes(plan.memory.peak_bytes),
                                         HumanBytes(plan.program.arena_bytes))},
  };
}

}  // namespace

std::vector<std::string> ConfigTable(const Plan& plan, const v1::RankLaunch& launch) {
  const Rows rows = RowsOf(plan, launch);
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.first.size());
  std::vector<std::string> lines;
  for (const auto& [name, value] : rows) lines.push_back(absl::StrFormat("%-*s  %s", width, name, value));
  return lines;
}

std::string StepLine(const v1::StepReport& report, int64_t steps) {
  double comm = 0, exposed = 0;
  for (const v1::OpTime& op : report.ops()) {
    comm += op.seconds();
    exposed += op.exposed_seconds();
  }
  const double overlap = comm > 0 ? 1 - exposed / comm : 1;  // As fsdpctl shows it.
  const double seconds = std::max(report.step_seconds(), 1e-9);
  return absl::StrFormat(
      "step %5d/%d  loss %8.4f  norm %8.3f  lr %.2e  %8.3f s  %9.0f tok/s  overlap %3.0f%%  peak %s",
      report.step(), steps, report.loss(), report.grad_norm(), report.learning_rate(), seconds,
      report.tokens() / seconds, 100 * overlap, HumanBytes(report.memory().peak_bytes()));
}

}  // namespace fsdpd
