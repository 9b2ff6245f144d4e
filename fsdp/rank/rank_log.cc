#include "fsdp/rank/rank_log.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/spec_text/enum_name.h"
#include "base/text.h"
#include "fsdp/data/packed_documents.h"
#include "fsdp/engine/agreement.h"

namespace fsdpd {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

std::string ModelText(const LlamaConfig& model) {
  return absl::StrFormat("%d layers, hidden %d, ffn %d, heads %d/%d, vocab %d", model.layers,
                         model.hidden_size, model.intermediate_size, model.heads, model.kv_heads,
                         model.vocab_size);
}

std::string ModelText(const Gpt2Config& model) {
  return absl::StrFormat("%d layers, hidden %d, ffn %d, heads %d, positions %d, vocab %d", model.layers,
                         model.hidden_size, model.intermediate_size, model.heads, model.positions,
                         model.vocab_size);
}

std::string ModelText(const PluginConfig& model) {
  return absl::StrFormat("%d units of %s, vocab %d", model.units.size(), model.path, model.vocab_size);
}

std::string ModelText(const PackageConfig& model) {
  return absl::StrFormat("%d units of %s (%s), vocab %d", model.units.size(), model.path,
                         model.digest.substr(0, 12), model.vocab_size);
}

std::string DataText(const Spec& spec) {
  if (spec.data.tokens.empty()) return absl::StrCat("synthetic, vocab ", spec.data.synthetic_vocab);
  std::string text;
  for (const TokenSource& file : spec.data.tokens) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", file.path, " x", file.weight);
    if (!file.mask.empty()) absl::StrAppend(&text, " masked by ", file.mask);
  }
  return text;
}

std::string DocumentsText(const DataConfig& data) {
  if (!data.document_end_token.has_value()) return "each sample is one";
  if (!data.packs_documents) return absl::StrCat("end with token ", *data.document_end_token);
  return absl::StrCat("packed whole, end with token ", *data.document_end_token, ", longer ones are ",
                      HandlingOf(data.too_long));
}

std::string EvaluationText(const EvaluationConfig& evaluation) {
  if (evaluation.every_steps == 0) return "none";
  return absl::StrFormat("every %d steps, %s samples", evaluation.every_steps,
                         evaluation.samples == 0 ? "all" : absl::StrCat(evaluation.samples));
}

std::string FrozenText(const Spec& spec) {
  if (!spec.lora.enabled()) return spec.frozen.empty() ? "none" : absl::StrJoin(spec.frozen, ", ");
  const LoraConfig& lora = spec.lora;
  const std::string targets =
      lora.targets.empty() ? "all matrices that can have one" : absl::StrJoin(lora.targets, ", ");
  return absl::StrFormat("all but LoRA adapters: rank %d, scale %g, of %s; weights%s from %s", lora.rank,
                         lora.scale(), targets, lora.nf4 ? " in nf4" : "",
                         lora.base_model.empty() ? "the initialization" : lora.base_model);
}

std::string OptimizerText(const OptimizerConfig& optimizer) {
  const std::string groups =
      optimizer.groups.empty() ? "" : absl::StrFormat(", %d groups", optimizer.groups.size());
  if (optimizer.kind == OptimizerKind::kSgd) {
    return absl::StrFormat("sgd: lr %g, momentum %g%s, weight decay %g%s", optimizer.lr, optimizer.momentum,
                           optimizer.nesterov ? " (nesterov)" : "", optimizer.weight_decay, groups);
  }
  return absl::StrFormat("adamw: lr %g, betas %g %g, eps %g, weight decay %g%s", optimizer.lr,
                         optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.weight_decay, groups);
}

std::string ScheduleText(const ScheduleConfig& schedule) {
  switch (schedule.shape) {
    case ScheduleShape::kConstant:
      return absl::StrFormat("constant, warmup %d steps", schedule.warmup_steps);
    case ScheduleShape::kCosine:
      return absl::StrFormat("cosine, warmup %d steps, min lr ratio %g", schedule.warmup_steps,
                             schedule.min_lr_ratio);
    case ScheduleShape::kLinear:
      return absl::StrFormat("linear, warmup %d steps, min lr ratio %g", schedule.warmup_steps,
                             schedule.min_lr_ratio);
    case ScheduleShape::kWsd:
      return absl::StrFormat("wsd, warmup %d steps, decay %d steps, min lr ratio %g", schedule.warmup_steps,
                             schedule.decay_steps, schedule.min_lr_ratio);
  }
  return "?";
}

std::string PrecisionText(const Spec& spec) {
  const std::string scale = spec.precision.compute == DType::kFp16
                                ? absl::StrFormat(", loss scale from %g", spec.loss_scale.initial)
                                : "";
  const char* products = spec.precision.fp8 ? " (layer products in fp8)" : "";
  return absl::StrFormat("compute %s%s, gradients %s, reduced in %s, moments %s%s",
                         NameOf(spec.precision.compute), products, NameOf(spec.precision.main_grads),
                         NameOf(spec.precision.grad_comm), NameOf(spec.precision.moments), scale);
}

std::string StrategyText(const Plan& plan) {
  const v1::Fsdp& fsdp = plan.resolved.fsdp();
  const std::string inner = ShortEnumName(fsdp.strategy());
  const Mesh& mesh = plan.spec.mesh;
  const int64_t context = mesh.size(Axis::kContext), tensor = mesh.size(Axis::kTensor);
  const int64_t expert = mesh.size(Axis::kExpert), pipeline = mesh.size(Axis::kPipeline);
  const std::string keeps =
      absl::StrCat(plan.spec.keep_gathered ? ", parameters stay gathered" : "",
                   context > 1 ? absl::StrCat(", ", context, " context-parallel ranks") : "",
                   tensor > 1 ? absl::StrCat(", ", tensor, " tensor-parallel ranks") : "",
                   expert > 1 ? absl::StrCat(", ", expert, " expert-parallel ranks") : "",
                   pipeline > 1 ? absl::StrCat(", stage ", plan.layout.stage.number, " of ", pipeline) : "");
  if (plan.spec.mesh.size(Axis::kReplicate) == 1) return inner + keeps;
  return absl::StrFormat("%s over %d ranks%s, %s over %d groups", inner,
                         plan.spec.mesh.SizeOf(Group::kReplica), keeps,
                         ShortEnumName(fsdp.outer().strategy()), plan.spec.mesh.size(Axis::kReplicate));
}

std::string RecomputeText(const Plan& plan) {
  const std::string kind = ShortEnumName(plan.resolved.fsdp().recompute());
  if (plan.spec.recompute == Recompute::kNone) return kind;
  return absl::StrFormat("%s, the first %d layers%s", kind, plan.spec.recompute_layers,
                         plan.spec.offloaded_layers > 0 ? " that are not offloaded" : "");
}

std::string OffloadText(const Plan& plan) {
  const int64_t layers = plan.spec.offloaded_layers;
  std::vector<std::string> parts;
  if (plan.spec.offload_optimizer) parts.push_back("optimizer state");
  if (layers > 0)
    parts.push_back(absl::StrCat("activations of ", layers, layers == 1 ? " layer" : " layers"));
  return parts.empty() ? "none" : absl::StrJoin(parts, ", ");
}

std::string CheckpointText(const CheckpointConfig& checkpoint) {
  if (!checkpoint.saves()) return "none";
  std::vector<std::string> when;
  if (checkpoint.every_steps > 0) when.push_back(absl::StrCat("every ", checkpoint.every_steps, " steps"));
  if (checkpoint.every_minutes > 0)
    when.push_back(absl::StrCat("every ", checkpoint.every_minutes, " minutes"));
  if (checkpoint.on_end) when.push_back("at the end");
  return absl::StrCat(checkpoint.dir, ", ", absl::StrJoin(when, " and "));
}

Rows RowsOf(const Plan& plan, const v1::RankLaunch& launch) {
  const Spec& spec = plan.spec;
  return {
      {"job", absl::StrFormat("%s, attempt %d", launch.job_id(), launch.attempt())},
      {"rank",
       absl::StrFormat("%d of %d on %s", launch.rank(), launch.world_size(),
                       spec.device == DeviceKind::kCuda ? absl::StrCat("cuda:", launch.device()) : "cpu")},
      {"model",
       absl::StrFormat("%s parameters: %s", HumanCount(static_cast<double>(plan.full_layout().elements())),
                       std::visit([](const auto& model) { return ModelText(model); }, spec.model))},
      {"data", DataText(spec)},
      {"documents", DocumentsText(spec.data)},
      {"sequence_length", absl::StrCat(spec.data.sequence_length)},
      {"steps", absl::StrCat(spec.steps)},
      {"batch", absl::StrFormat("%d samples: %d micro-batches of %d on each of %d ranks", spec.global_batch,
                                spec.micro_batches_per_step(), spec.micro_batch, spec.mesh.data_ranks())},
      {"evaluation", EvaluationText(spec.evaluation)},
      {"seed", absl::StrCat(spec.seed)},
      {"optimizer", OptimizerText(spec.optimizer)},
      {"clip_norm", spec.optimizer.clip_norm > 0 ? absl::StrFormat("%g", spec.optimizer.clip_norm) : "none"},
      {"schedule", ScheduleText(spec.schedule)},
      {"frozen", FrozenText(spec)},
      {"precision", PrecisionText(spec)},
      {"strategy", StrategyText(plan)},
      {"prefetch", HumanBytes(spec.prefetch_bytes)},
      {"recompute", RecomputeText(plan)},
      {"offload", OffloadText(plan)},
      {"checkpoints", CheckpointText(spec.checkpoint)},
      {"program",
       absl::StrFormat("%d instructions, hash %s", plan.program.instructions.size(), plan.program_hash)},
      {"planned memory", absl::StrFormat("%s at the peak, %s of it arena", HumanBytes(plan.memory.peak_bytes),
                                         HumanBytes(plan.program.arena_bytes))},
  };
}

// Shorter waits for data are not shown.
constexpr double kToldSeconds = 1e-3;

std::string WhySkipped(const v1::StepReport& report) {
  if (!report.has_bad_step()) return "not finite";
  const v1::BadStep& bad = report.bad_step();
  const std::string why = bad.kind() == v1::BAD_STEP_KIND_SPIKE
                              ? absl::StrFormat("norm above %.3f", bad.threshold())
                              : std::string("not finite");
  return absl::StrFormat("%s, samples %d to %d", why, bad.first_sample(), bad.end_sample() - 1);
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
  double comm = 0;
  for (const v1::OpTime& op : report.ops()) comm += op.seconds();
  const std::string overlap =  // Same as fsdpctl.
      comm > 0 ? absl::StrFormat("%.0f%%", 100 * std::clamp(1 - report.exposed_seconds() / comm, 0.0, 1.0))
               : "-";
  const double seconds = std::max(report.step_seconds(), 1e-9);
  std::string line = absl::StrFormat(
      "step %5d/%d  loss %8.4f  norm %8.3f  lr %.2e  %8.3f s  %9.0f tok/s  overlap %4s  peak %s",
      report.step(), steps, report.loss(), report.grad_norm(), report.learning_rate(), seconds,
      report.tokens() / seconds, overlap, HumanBytes(report.memory().peak_bytes()));
  if (report.data_wait_seconds() >= kToldSeconds)
    absl::StrAppend(&line, "  waited ", HumanSeconds(report.data_wait_seconds()), " for data");
  if (report.has_loss_scale()) absl::StrAppend(&line, "  scale ", report.loss_scale());
  if (report.skipped()) absl::StrAppend(&line, "  skipped: ", WhySkipped(report));
  return line;
}

std::string EvaluationLine(const v1::StepReport& report, int64_t steps) {
  const v1::StepReport::Evaluation& evaluation = report.evaluation();
  return absl::StrFormat("eval %5d/%d  loss %8.4f  over %d tokens  %.3f s", report.step(), steps,
                         evaluation.loss(), evaluation.tokens(), evaluation.seconds());
}

std::vector<std::string> RestoredLines(const v1::RestoredCheckpoint& restored) {
  std::vector<std::string> lines;
  for (const std::string& checkpoint : restored.skipped_checkpoints())
    lines.push_back(absl::StrCat("skipped checkpoint: ", checkpoint));
  const std::string took = HumanSeconds(restored.seconds());
  lines.push_back(
      restored.step() == 0
          ? absl::StrFormat("starting with only the parameters of %s, read in %s", restored.path(), took)
          : absl::StrFormat("resuming after step %d from %s, read in %s", restored.step(), restored.path(),
                            took));
  return lines;
}

std::string SavedLine(const v1::SavedCheckpoint& saved, int64_t steps) {
  if (!saved.format().empty()) {
    return saved.error().empty()
               ? absl::StrFormat("export %s  %s in %s  %s", saved.format(), HumanBytes(saved.bytes()),
                                 HumanSeconds(saved.seconds()), saved.path())
               : absl::StrFormat("export %s could not be written to %s: %s; the checkpoint is complete",
                                 saved.format(), saved.path(), saved.error());
  }
  const std::string head = absl::StrFormat("save %5d/%d  ", saved.step(), steps);
  if (!saved.error().empty()) {
    const char* continues = saved.step() < steps ? "; training continues" : "";
    return absl::StrFormat("%sno checkpoint at %s: %s%s", head, saved.path(), saved.error(), continues);
  }
  return absl::StrFormat("%s%s in %s, training waited %s for it  %s", head, HumanBytes(saved.bytes()),
                         HumanSeconds(saved.seconds()), HumanSeconds(saved.stall_seconds()), saved.path());
}

std::vector<std::string> TracedLines(const v1::StepTraceResult& traced, int64_t steps) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const auto& file) {
    const std::string total = steps > 0 ? absl::StrCat("/", steps) : "";  // Not known yet with train.epochs.
    const std::string head = absl::StrFormat("%s %4d%s  ", what, traced.step(), total);
    lines.push_back(file.error().empty() ? absl::StrCat(head, HumanBytes(file.bytes()), "  ", file.path())
                                         : absl::StrCat(head, "not written: ", file.error()));
  };
  if (!traced.path().empty() || !traced.error().empty()) add("trace", traced);
  if (traced.has_memory_snapshot()) add("memory", traced.memory_snapshot());
  return lines;
}

std::string SpikeLine(const v1::StepReport& report, int64_t steps) {
  const v1::MemorySpike& spike = report.memory().spike();
  const int64_t peak = report.memory().peak_bytes();
  std::vector<std::string> above;
  const auto add = [&](int64_t bytes, const char* what) {
    if (bytes <= 0 || peak <= bytes) return;
    above.push_back(absl::StrFormat("%s (%.0f%%) above %s", HumanBytes(peak - bytes),
                                    100.0 * static_cast<double>(peak - bytes) / static_cast<double>(bytes),
                                    what));
  };
  add(spike.median_bytes(), "the median of earlier steps");
  add(spike.plan_bytes(), "the plan");
  return absl::StrFormat("memory %3d/%d  peak %s in %s: %s", report.step(), steps, HumanBytes(peak),
                         spike.instruction().empty() ? "no instruction" : spike.instruction(),
                         absl::StrJoin(above, ", "));
}

}  // namespace fsdpd
