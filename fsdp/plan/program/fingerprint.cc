#include "fsdp/plan/program/fingerprint.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <variant>

namespace fsdpd {
namespace {

using Lines = std::vector<std::string>;

// 17 digits identify a double exactly, so different values print differently.
std::string Exact(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// Writes lines such as "spec.global_batch = 64" under one prefix.
class Section {
 public:
  Section(std::string prefix, Lines* lines) : prefix_(std::move(prefix)), lines_(lines) {}

  void Text(const char* name, absl::string_view value) const {
    lines_->push_back(absl::StrCat(prefix_, ".", name, " = ", value));
  }
  void Int(const char* name, int64_t value) const { Text(name, absl::StrCat(value)); }
  void Real(const char* name, double value) const { Text(name, Exact(value)); }

 private:
  std::string prefix_;
  Lines* lines_;
};

const char* NameOf(Recompute recompute) {
  constexpr const char* kNames[] = {"none", "selective", "full"};
  return kNames[static_cast<size_t>(recompute)];
}

const char* NameOf(ScheduleShape shape) {
  constexpr const char* kNames[] = {"constant", "cosine", "linear", "wsd"};
  return kNames[static_cast<size_t>(shape)];
}

const char* NameOf(TokenType type) {
  constexpr const char* kNames[] = {"u8", "u16", "u32", "megatron"};
  return kNames[static_cast<size_t>(type)];
}

// Omitted for dense models.
void Add(const ExpertsConfig& experts, Lines* lines) {
  if (experts.count == 0) return;
  const Section to("model.llama.experts", lines);
  to.Int("count", experts.count);
  to.Int("per_token", experts.per_token);
  to.Int("intermediate_size", experts.intermediate_size);
  to.Int("normalized", experts.normalized);
  to.Int("dense_layers", experts.dense_layers);
  to.Real("balance_loss", experts.balance_loss);
  to.Real("z_loss", experts.z_loss);
  to.Text("scores", experts.sigmoid ? "sigmoid" : "softmax");
  to.Int("selection_bias", experts.selection_bias);
  to.Int("groups", experts.groups);
  to.Int("groups_per_token", experts.groups_per_token);
  to.Int("groups_by_best", experts.groups_by_best);
  to.Real("weight_scale", experts.weight_scale);
  to.Int("shared_intermediate_size", experts.shared_intermediate_size);
  to.Real("bias_update_rate", experts.bias_update_rate);
}

// Omitted without latent attention.
void Add(const LatentConfig& latent, Lines* lines) {
  if (!latent) return;
  const Section to("model.llama.latent_attention", lines);
  to.Int("rank", latent.rank);
  to.Int("query_rank", latent.query_rank);
  to.Int("plain_head_size", latent.plain_head_size);
  to.Int("rotary_head_size", latent.rotary_head_size);
  to.Int("value_head_size", latent.value_head_size);
  to.Int("interleaved", latent.interleaved);
}

void Add(const RopeScaling& scaling, Lines* lines) {
  const Section to("model.llama.rope_scaling", lines);
  to.Real("factor", scaling.factor);
  to.Real("low_freq_factor", scaling.low_freq_factor);
  to.Real("high_freq_factor", scaling.high_freq_factor);
  to.Int("original_positions", scaling.original_positions);
  if (!scaling.yarn) return;
  to.Real("yarn.mscale", scaling.mscale);
  to.Real("yarn.mscale_all_dim", scaling.mscale_all_dim);
}

void Add(const LlamaConfig& llama, Lines* lines) {
  const Section to("model.llama", lines);
  to.Int("vocab_size", llama.vocab_size);
  to.Int("hidden_size", llama.hidden_size);
  to.Int("intermediate_size", llama.intermediate_size);
  to.Int("layers", llama.layers);
  to.Int("heads", llama.heads);
  to.Int("kv_heads", llama.kv_heads);
  to.Int("head_size", llama.head_size);
  to.Real("rope_theta", llama.rope_theta);
  to.Real("norm_epsilon", llama.norm_epsilon);
  to.Int("tied_embeddings", llama.tied_embeddings);
  to.Int("qk_norm", llama.qk_norm);
  to.Int("attention_bias", llama.attention_bias);
  Add(llama.rope_scaling, lines);
  Add(llama.experts, lines);
  Add(llama.latent, lines);
}

void Add(const Gpt2Config& gpt2, Lines* lines) {
  const Section to("model.gpt2", lines);
  to.Int("vocab_size", gpt2.vocab_size);
  to.Int("hidden_size", gpt2.hidden_size);
  to.Int("intermediate_size", gpt2.intermediate_size);
  to.Int("layers", gpt2.layers);
  to.Int("heads", gpt2.heads);
  to.Int("positions", gpt2.positions);
  to.Real("norm_epsilon", gpt2.norm_epsilon);
  to.Int("tied_embeddings", gpt2.tied_embeddings);
}

// Parameters are covered by the layout.
void Add(const PluginConfig& plugin, Lines* lines) {
  const Section to("model.plugin", lines);
  to.Text("path", plugin.path);
  to.Text("args", plugin.args);
  to.Int("vocab_size", plugin.vocab_size);
  to.Int("max_sequence_length", plugin.max_sequence_length);
}

// The digest covers the sizes of its graphs, and its code.
void Add(const PackageConfig& package, Lines* lines) {
  const Section to("model.package", lines);
  to.Text("digest", package.digest);
}

void AddSources(const std::string& name, const std::vector<TokenSource>& sources, Lines* lines) {
  for (size_t i = 0; i < sources.size(); ++i) {
    lines->push_back(absl::StrCat("data.", name, "[", i, "] = ", NameOf(sources[i].type), " weight ",
                                  Exact(sources[i].weight), sources[i].mask.empty() ? "" : " masked"));
  }
}

void Add(const DataConfig& data, const EvaluationConfig& evaluation, Lines* lines) {
  const Section to("data", lines);
  AddSources("tokens", data.tokens, lines);
  AddSources("validation", data.validation, lines);
  to.Int("synthetic_vocab", data.synthetic_vocab);
  to.Int("sequence_length", data.sequence_length);
  to.Text("ignored_token", data.ignore_index ? absl::StrCat(*data.ignore_index) : "none");
  to.Text("document_end_token", data.document_end_token ? absl::StrCat(*data.document_end_token) : "none");
  to.Int("packs_documents", data.packs_documents);
  to.Int("too_long", static_cast<int64_t>(data.too_long));
  to.Int("evaluation.every_steps", evaluation.every_steps);
  to.Int("evaluation.samples", evaluation.samples);
}

void Add(const OptimizerConfig& optimizer, Lines* lines) {
  const Section to("optimizer", lines);
  to.Text("kind", optimizer.kind == OptimizerKind::kAdamW ? "adamw" : "sgd");
  to.Real("lr", optimizer.lr);
  to.Real("weight_decay", optimizer.weight_decay);
  to.Real("beta1", optimizer.beta1);
  to.Real("beta2", optimizer.beta2);
  to.Real("eps", optimizer.eps);
  to.Real("momentum", optimizer.momentum);
  to.Int("nesterov", optimizer.nesterov);
  to.Real("clip_norm", optimizer.clip_norm);
}

void Add(const ScheduleConfig& schedule, Lines* lines) {
  const Section to("schedule", lines);
  to.Text("shape", NameOf(schedule.shape));
  to.Int("warmup_steps", schedule.warmup_steps);
  to.Int("decay_steps", schedule.decay_steps);
  to.Real("min_lr_ratio", schedule.min_lr_ratio);
}

void Add(const InitialConfig& initial, Lines* lines) {
  const Section to("initial", lines);
  to.Real("deviation", initial.deviation);
  to.Real("embedding_deviation", initial.embedding_deviation.value_or(initial.deviation));
  to.Text("scale_outputs", !initial.scale_outputs ? "auto" : *initial.scale_outputs ? "yes" : "no");
}

// Excludes settings that only the committing rank reads; omitted for jobs without checkpoints.
void Add(const CheckpointConfig& checkpoint, Lines* lines) {
  const Section to("checkpoint", lines);
  if (checkpoint.saves()) {
    to.Text("dir", checkpoint.dir);
    to.Int("every_steps", checkpoint.every_steps);
    to.Int("on_end", checkpoint.on_end);
  }
  if (checkpoint.load.empty()) return;
  to.Text("load", checkpoint.load);
  if (checkpoint.load_optimizer.has_value()) to.Int("load_optimizer", *checkpoint.load_optimizer);
}

// Omitted if the job has no adapters. Their rank and targets are covered by the layout.
void Add(const LoraConfig& lora, Lines* lines) {
  if (!lora.enabled()) return;
  const Section to("lora", lines);
  to.Real("scale", lora.scale());
  to.Text("base_model", lora.base_model);
}

const char* NameOf(StepAction action) {
  constexpr const char* kNames[] = {"stop", "skip", "rewind"};
  return kNames[static_cast<size_t>(action)];
}

// Omitted if the job has no bad-step policy.
void Add(const OnNonfiniteConfig& on_nonfinite, const OnSpikeConfig& on_spike, Lines* lines) {
  if (on_nonfinite.action != StepAction::kStop) {
    const Section to("on_nonfinite", lines);
    to.Text("action", NameOf(on_nonfinite.action));
    to.Int("max", on_nonfinite.max);
  }
  if (!on_spike.watched()) return;
  const Section to("on_spike", lines);
  to.Text("action", NameOf(on_spike.action));
  to.Int("max", on_spike.max);
  to.Real("grad_norm_factor", on_spike.grad_norm_factor);
  to.Int("window", on_spike.window);
}

// Frozen patterns and parameter groups are covered by their effect on the layout.
void Add(const Spec& spec, Lines* lines) {
  const Section to("spec", lines);
  to.Int("steps", spec.steps);
  to.Int("micro_batch", spec.micro_batch);
  to.Int("global_batch", spec.global_batch);
  to.Text("seed", absl::StrCat(spec.seed));
  to.Text("compute", NameOf(spec.precision.compute));
  to.Text("main_grads", NameOf(spec.precision.main_grads));
  to.Text("grad_comm", NameOf(spec.precision.grad_comm));
  to.Text("moments", NameOf(spec.precision.moments));
  if (spec.precision.fp8) to.Text("fp8 but for", absl::StrJoin(spec.precision.keep_bf16, " "));
  to.Real("loss_scale.initial", spec.loss_scale.initial);
  to.Int("loss_scale.growth_interval", spec.loss_scale.growth_interval);
  to.Text("strategy", NameOf(spec.strategy));
  to.Int("prefetch_bytes", spec.prefetch_bytes);
  to.Int("keep_gathered", spec.keep_gathered);
  if (spec.offload_optimizer) to.Int("offload_optimizer", 1);
  if (spec.offloaded_layers > 0) to.Int("offloaded_layers", spec.offloaded_layers);
  to.Text("recompute", NameOf(spec.recompute));
  to.Int("recompute_layers", spec.recompute_layers);
  to.Text("device", spec.device == DeviceKind::kCpu ? "cpu" : "cuda");
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    if (axis == Axis::kPipeline && spec.mesh.size(axis) == 1) continue;  // Omitted with one stage.
    to.Int(absl::StrCat("mesh.", NameOf(axis)).c_str(), spec.mesh.size(axis));
  }
  if (!spec.stage_units.empty()) to.Text("stage_units", absl::StrJoin(spec.stage_units, " "));
  if (spec.zero_bubble) to.Int("zero_bubble", 1);
  to.Text("outer_strategy", NameOf(spec.outer_strategy));
  if (spec.deterministic) to.Int("deterministic", 1);
  to.Text("graphs", !spec.graphs.has_value() ? "auto" : *spec.graphs ? "yes" : "no");
  std::visit([lines](const auto& model) { Add(model, lines); }, spec.model);
  Add(spec.initial, lines);
  Add(spec.data, spec.evaluation, lines);
  Add(spec.optimizer, lines);
  Add(spec.schedule, lines);
  Add(spec.checkpoint, lines);
  Add(spec.lora, lines);
  Add(spec.on_nonfinite, spec.on_spike, lines);
}

std::string GroupsOf(const Bucket& bucket) {
  const BucketGroups& groups = bucket.groups;
  return absl::StrCat(
      "  ", bucket.shards, " shards over ", NameOf(groups.shard), ", of ", bucket.pieces, " pieces over ",
      NameOf(groups.pieces), "; summed over ", NameOf(groups.reduce), ", then ", NameOf(groups.replicate),
      bucket.slices > 1 ? absl::StrCat("; one of ", bucket.slices, " slices over ", NameOf(groups.slices))
                        : "");
}

std::string TypesOf(const Bucket& bucket) {
  const BucketTypes& types = bucket.types;
  return absl::StrCat("  main ", bucket.in_nf4 ? "nf4" : NameOf(types.main), ", moments ",
                      NameOf(types.moment), ", gathered ", NameOf(types.gathered),
                      bucket.in_fp8() ? absl::StrCat(" by rows of ", bucket.row) : "",
                      types.split_fp32 ? " as halves of main" : "", ", wire ", NameOf(types.grad_comm),
                      ", gradients ", NameOf(types.gradient));
}

void Add(const Layout& layout, Lines* lines) {
  if (const StagePlace& stage = layout.stage; stage.count > 1) {
    std::string line = absl::StrCat("stage ", stage.number, " of ", stage.count, ":");
    for (const UnitRun& run : stage.runs)
      absl::StrAppend(&line, " ", run.end - run.begin, " from unit ", run.first_unit, ",");
    lines->push_back(absl::StrCat(line, " hands on ", stage.hidden_elements, " ", NameOf(stage.hidden_type)));
  }
  lines->push_back(
      absl::StrCat("layout: ", layout.units.size(), " units, ", layout.buckets.size(), " buckets"));
  for (const UnitLayout& unit : layout.units) {
    std::string line = absl::StrCat("unit ", unit.name, ": buckets ", absl::StrJoin(unit.buckets, " "));
    if (unit.borrows >= 0) absl::StrAppend(&line, ", borrows ", layout.units[unit.borrows].name);
    for (const UnitExchange& exchange : unit.exchanges) {
      absl::StrAppend(&line, ", ", VerbOf(exchange.what), " ", exchange.forward_elements, " and ",
                      exchange.backward_elements, " ", NameOf(exchange.type), " over ",
                      NameOf(exchange.group));
    }
    lines->push_back(std::move(line));
  }
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    lines->push_back(absl::StrCat(
        "bucket ", b, " ", layout.units[bucket.unit].name,
        bucket.trainable             ? " trainable"
        : bucket.of_base             ? " base"
        : bucket.is_selection_bias() ? absl::StrCat(" balances by choices from ", bucket.choices_begin)
                                     : " frozen",
        bucket.tied_replica == TiedReplica::kNone ? ": " : ", of two stages: ", bucket.bucket_elements,
        " elements, shard ", bucket.shard_elements, ", main ", bucket.main_elements));
    lines->push_back(GroupsOf(bucket));
    lines->push_back(TypesOf(bucket));
    for (const ParamSlot& param : bucket.params) {
      const std::string partition =
          param.partition.is_partitioned()
              ? absl::StrCat(" of ", param.partition.parts, " along ", param.partition.dim)
              : "";
      const std::string owner = param.owner.has_value() ? absl::StrCat(*param.owner, ".") : "";
      lines->push_back(absl::StrCat("  ", owner, param.name, " [", absl::StrJoin(param.shape, ", "), "]",
                                    partition, " at ", param.offset, ", weight_decay ",
                                    Exact(param.weight_decay), ", lr_scale ", Exact(param.lr_scale)));
    }
  }
}

// Buffers by index; their own lines describe them.
std::string LineOf(const Program& program, const Layout& layout, int index) {
  const Instruction& at = program.instructions[index];
  std::string line = absl::StrCat("#", index, " ", NameOf(at.op));
  if (at.unit >= 0) absl::StrAppend(&line, " ", layout.units[at.unit].name);
  if (at.bucket >= 0) absl::StrAppend(&line, " bucket ", at.bucket);
  if (at.micro_batch >= 0) absl::StrAppend(&line, " mb ", at.micro_batch);
  absl::StrAppend(&line, " on ", NameOf(at.lane));
  if (at.group != Group::kSelf) absl::StrAppend(&line, ", ", NameOf(at.role), " over ", NameOf(at.group));
  if (at.accumulate) line += ", adds";
  if (at.defers_grads) line += ", puts off";
  if (at.recompute != Recompute::kNone) absl::StrAppend(&line, ", recomputes ", NameOf(at.recompute));
  if (!at.after.empty()) absl::StrAppend(&line, ", after #", absl::StrJoin(at.after, " #"));
  if (!at.after_previous.empty()) {
    absl::StrAppend(&line, ", after the last step's #", absl::StrJoin(at.after_previous, " #"));
  }
  for (const BufferUse& use : at.uses) {
    absl::StrAppend(&line, use.access == Access::kRead ? ", reads " : ", writes ", use.buffer);
  }
  return line;
}

void Add(const Program& program, const Layout& layout, Lines* lines) {
  lines->push_back(absl::StrCat(program.kind == ProgramKind::kTraining ? "training" : "evaluation",
                                " program: ", program.instructions.size(), " instructions, ",
                                program.buffers.size(), " buffers, arena of ", program.arena_bytes,
                                " bytes"));
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    std::string line = absl::StrCat("buffer ", b, " ", NameOf(buffer.kind), " of bucket ", buffer.bucket,
                                    ": ", buffer.bytes, " bytes at ", buffer.offset, ", live");
    for (const Buffer::Interval& live : buffer.live) absl::StrAppend(&line, " #", live.born, "-#", live.dies);
    lines->push_back(std::move(line));
  }
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    lines->push_back(LineOf(program, layout, static_cast<int>(i)));
  }
}

}  // namespace

std::vector<std::string> Fingerprint(const Spec& spec, const Layout& layout, const Program& program) {
  Lines lines;
  lines.reserve(128 + program.instructions.size() + program.buffers.size() + 16 * layout.buckets.size());
  Add(spec, &lines);
  Add(layout, &lines);
  Add(program, layout, &lines);
  return lines;
}

std::string HashOf(const std::vector<std::string>& fingerprint) {
  std::string all;
  for (const std::string& line : fingerprint) {
    all += line;
    all += '\n';
  }
  return absl::StrFormat("%016x", XXH64(all.data(), all.size(), /*seed=*/0));
}

LineDifference FirstDifference(const std::vector<std::string>& first,
                               const std::vector<std::string>& second) {
  const size_t common = std::min(first.size(), second.size());
  for (size_t i = 0; i < common; ++i) {
    if (first[i] != second[i]) return {first[i], second[i]};
  }
  if (first.size() == second.size()) return {};
  return {first.size() > common ? first[common] : "nothing",
          second.size() > common ? second[common] : "nothing"};
}

}  // namespace fsdpd
