// Rules of checkpoint.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

// PATH_MAX is 4096 with the terminator; leaves space for the checkpoint's directory and file names.
constexpr size_t kMaxPathBytes = 3840;

bool HasControlCharacter(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

// Checks a path that ranks on any node open and that logs and events print. Empty: valid.
Findings ChecksPath(const std::string& path) {
  if (path.empty()) return {};
  if (HasControlCharacter(path)) {
    return {{"the path contains a control character", "remove the control characters"}};
  }
  if (path.size() > kMaxPathBytes) {
    return {{absl::StrCat("the path has ", path.size(), " bytes"),
             absl::StrCat("use a path of at most ", kMaxPathBytes, " bytes")}};
  }
  return CheckPath(path);
}

Findings ChecksFormat(const Facts& f) {
  const std::string& format = f.job.checkpoint().format();
  if (format.empty() || format == "fsdp_dtensor") return {};
  const bool megatron = format == "torch_dist" || format == "zarr" || format == "torch";
  return {{megatron ? absl::StrCat("'", format,
                                   "' stores tensor-parallel shards; FSDP shards start and end inside rows, "
                                   "which only fsdp_dtensor can describe")
                    : absl::StrCat("'", format, "' is not a supported checkpoint format"),
           "write format: fsdp_dtensor, or leave it out"}};
}

Findings ChecksExport(const Facts& f) {
  const std::string& format = f.job.checkpoint().export_();
  if (format.empty() || format == "hf" || format == "peft") return {};
  return {{absl::StrCat("'", format, "' is not a supported export format"),
           "write export: hf, or export: peft with train.lora, or leave it out"}};
}

// For a mixture-of-experts model: the nearest Transformers family, and the differences from it.
std::string NearestFamily(const LlamaConfig& llama) {
  const ExpertsConfig& experts = llama.experts;
  std::vector<std::string> others;
  const auto unless = [&](bool alike, const char* field) {
    if (!alike) others.push_back(field);
  };
  unless(!llama.attention_bias, "no attention_bias");
  const int64_t shared = experts.shared_intermediate_size;
  if (experts.sigmoid || llama.latent) {
    const bool leaves_out = experts.groups_per_token < experts.groups;
    unless(llama.qk_norm || llama.latent, "qk_norm");
    unless(experts.selection_bias == experts.sigmoid,
           experts.sigmoid ? "selection_bias" : "no selection_bias");
    unless(experts.sigmoid || !experts.normalized, "normalized: false");
    unless(experts.sigmoid || llama.latent.interleaved, "interleaved: true");
    unless(!leaves_out || experts.groups_by_best != experts.sigmoid,
           experts.sigmoid ? "groups by their two best scores" : "groups by their best score");
    unless(shared > 0 && shared % experts.intermediate_size == 0,
           "a shared_intermediate_size that is a multiple of intermediate_size");
    const char* family = !experts.sigmoid ? "DeepSeek-V2 (latent attention and softmax scores),"
                         : llama.latent   ? "DeepSeek-V3 (latent attention),"
                                          : "dots1 (sigmoid scores),";
    return absl::StrCat("the nearest family, ", family, " requires ", absl::StrJoin(others, ", "));
  }
  unless(!experts.selection_bias, "no selection_bias");
  unless(experts.groups == 1, "no groups");
  unless(experts.weight_scale == 1, "no weight_scale");
  unless(shared == 0, "no shared_intermediate_size");
  if (llama.qk_norm)
    return absl::StrCat("the nearest family, Qwen3-MoE (qk_norm), requires ", absl::StrJoin(others, ", "));
  unless(experts.normalized, "normalized: true (Qwen3-MoE, which has qk_norm, does not require it)");
  unless(experts.dense_layers == 0, "no dense_layers (Qwen3-MoE, which has qk_norm, allows them)");
  return absl::StrCat("the nearest family, Mixtral, requires ", absl::StrJoin(others, ", "));
}

Findings ChecksExportedModel(const Facts& f) {
  const v1::Model& model = f.job.model();
  if (f.job.checkpoint().export_().empty() || !f.IsValid({"model", "checkpoint.export"})) return {};
  const char* fix = "leave export out";
  if (model.has_plugin()) return {{"export does not support plug-in models", fix}};
  const ModelConfig config = f.model();
  const auto* llama = std::get_if<LlamaConfig>(&config);
  if (llama == nullptr || !TransformersType(*llama).empty()) return {};
  if (llama->qk_norm && llama->attention_bias)
    return {{"no Transformers family has both qk_norm and attention_bias", fix}};
  return {{absl::StrCat("no Transformers family has these expert settings: ", NearestFamily(*llama)), fix}};
}

// Intervals are checked even if no checkpoints are written.
bool IntervalsAreValid(const Facts& f) {
  return f.IsValid(
      {"checkpoint.every_steps", "checkpoint.every_minutes", "checkpoint.keep_every", "train.steps"});
}

bool SavesWithin(const Facts& f) {
  const int64_t every = f.job.checkpoint().every_steps();
  return f.job.checkpoint().every_minutes() > 0 || (every > 0 && every <= f.steps());
}

bool HasNoDir(const Facts& f) { return f.job.checkpoint().dir().empty() && f.IsValid({"checkpoint.dir"}); }

Findings IntervalWithoutDir(const Facts& f, const char* name, int64_t interval) {
  if (interval <= 0 || !HasNoDir(f)) return {};
  return {{absl::StrCat(name, " is ", interval, " and there is no checkpoint.dir to write to"),
           absl::StrCat("write checkpoint.dir, or leave ", name, " out")}};
}

Findings KeptWithoutDir(const Facts& f, bool is_set, int64_t kept, const char* after) {
  if (!is_set || !HasNoDir(f)) return {};
  return {{"there is no checkpoint.dir, so nothing is written or removed",
           "leave it out, or write checkpoint.dir", "", absl::StrCat(kept), after}};
}

const Rule kRules[] = {
    {"checkpoint_dir_path", kError, "checkpoint.dir",
     "dir must be an absolute path without .. or control characters, of at most 3840 bytes",
     [](const Facts& f) { return ChecksPath(f.job.checkpoint().dir()); }},
    {"checkpoint_load_path", kError, "checkpoint.load",
     "load must be an absolute path without .. or control characters, of at most 3840 bytes",
     [](const Facts& f) { return ChecksPath(f.job.checkpoint().load()); }},
    {"checkpoint_every_not_negative", kError, "checkpoint.every_steps", "every_steps must not be negative",
     NotNegative("write for example every_steps: 1000, or omit it to save only at the end")},
    {"checkpoint_every_without_dir", kError, "checkpoint.every_steps", "every_steps requires checkpoint.dir",
     [](const Facts& f) { return IntervalWithoutDir(f, "every_steps", f.job.checkpoint().every_steps()); }},
    {"checkpoint_minutes_not_negative", kError, "checkpoint.every_minutes",
     "every_minutes must not be negative",
     NotNegative("write for example every_minutes: 30, or leave it out")},
    {"checkpoint_minutes_without_dir", kError, "checkpoint.every_minutes",
     "every_minutes requires checkpoint.dir",
     [](const Facts& f) {
       return IntervalWithoutDir(f, "every_minutes", f.job.checkpoint().every_minutes());
     }},
    {"checkpoint_on_end_without_dir", kError, "checkpoint.on_end", "on_end requires checkpoint.dir",
     When{[](const Facts& f) { return f.job.checkpoint().on_end() && HasNoDir(f); },
          "on_end asks for a checkpoint and there is no checkpoint.dir to write to",
          "write checkpoint.dir, or leave on_end out"}},
    {"checkpoint_never_saved", kError, "checkpoint.dir",
     "checkpoint.dir requires an interval within the job, or on_end",
     [](const Facts& f) -> Findings {
       const v1::Checkpoint& checkpoint = f.job.checkpoint();
       if (checkpoint.dir().empty() || checkpoint.on_end() || SavesWithin(f)) return {};
       if (!IntervalsAreValid(f) || !f.IsValid({"checkpoint.on_end"})) return {};
       const std::string why = checkpoint.every_steps() > 0
                                   ? absl::StrCat("every_steps, ", checkpoint.every_steps(),
                                                  ", is above the ", f.steps(), " steps of the job")
                                   : "neither every_steps nor every_minutes is given";
       return {{absl::StrCat(why, " and on_end is false, so no checkpoint would be written"),
                "leave on_end out, or write every_minutes, or every_steps within the job's steps, or leave "
                "checkpoint out"}};
     }},
    {"checkpoint_every_above_steps", kWarn, "checkpoint.every_steps",
     "every_steps above train.steps has no effect",
     [](const Facts& f) -> Findings {
       const v1::Checkpoint& checkpoint = f.job.checkpoint();
       if (!checkpoint.on_end() || checkpoint.every_minutes() > 0 || !IntervalsAreValid(f)) return {};
       if (checkpoint.every_steps() <= f.steps() || checkpoint.dir().empty()) return {};
       return {{absl::StrCat("the job has ", f.steps(), " steps and every_steps is ",
                             checkpoint.every_steps(), ": only the final checkpoint is written"),
                "write a smaller every_steps, or omit it to save only at the end"}};
     }},
    {"checkpoint_keep_last_positive", kError, "checkpoint.keep_last", "keep_last must be positive",
     [](const Facts& f) -> Findings {
       const v1::Checkpoint& checkpoint = f.job.checkpoint();
       if (!checkpoint.has_keep_last() || checkpoint.keep_last() >= 1) return {};
       return {{absl::StrCat("keep_last is ", checkpoint.keep_last(), " and at least one must be kept"),
                "write 1 or more, or omit it (default: 3)"}};
     }},
    {"checkpoint_keep_last_without_dir", kAdjust, "checkpoint.keep_last",
     "keep_last has no effect without checkpoint.dir",
     [](const Facts& f) {
       const v1::Checkpoint& checkpoint = f.job.checkpoint();
       return KeptWithoutDir(f, checkpoint.has_keep_last() && f.IsValid({"checkpoint.keep_last"}),
                             checkpoint.keep_last(), "none");
     }},
    {"checkpoint_keep_every_not_negative", kError, "checkpoint.keep_every", "keep_every must not be negative",
     NotNegative("write a multiple of every_steps, or leave it out")},
    {"checkpoint_keep_every_without_dir", kAdjust, "checkpoint.keep_every",
     "keep_every has no effect without checkpoint.dir",
     [](const Facts& f) {
       const int64_t every = f.job.checkpoint().keep_every();
       return KeptWithoutDir(f, every > 0, every, "0");
     }},
    {"checkpoint_keep_every_divides", kWarn, "checkpoint.keep_every",
     "keep_every should be a multiple of every_steps",
     [](const Facts& f) -> Findings {
       const v1::Checkpoint& checkpoint = f.job.checkpoint();
       const int64_t every = checkpoint.every_steps(), keep = checkpoint.keep_every();
       if (checkpoint.dir().empty() || keep <= 0 || !IntervalsAreValid(f)) return {};
       if (every > 0 && keep % every == 0) return {};
       if (every == 0 && checkpoint.every_minutes() > 0) {
         return {
             {absl::StrCat("checkpoints are written by time, so few are at a multiple of ", keep, " steps"),
              "write every_steps too, or leave it out"}};
       }
       if (every == 0) {
         return {{absl::StrCat("keep_every is ", keep, " and only the final checkpoint is written"),
                  "leave it out, or write every_steps too"}};
       }
       return {{absl::StrCat("checkpoints are written every ", every, " steps, so few are at a multiple of ",
                             keep, " steps"),
                "write a multiple of every_steps, or leave it out"}};
     }},
    {"checkpoint_load_optimizer_without_load", kAdjust, "checkpoint.load_optimizer",
     "load_optimizer has no effect without load",
     [](const Facts& f) -> Findings {
       const v1::Checkpoint& checkpoint = f.job.checkpoint();
       if (!checkpoint.has_load_optimizer()) return {};
       if (!checkpoint.load().empty() || !f.IsValid({"checkpoint.load"})) return {};
       return {{"nothing is loaded; later attempts resume from the job's own checkpoints",
                "leave it out, or write checkpoint.load", "", checkpoint.load_optimizer() ? "true" : "false",
                "none"}};
     }},
    {"checkpoint_export_known", kError, "checkpoint.export", "export must be hf or peft", ChecksExport},
    {"checkpoint_export_of_the_end", kError, "checkpoint.export", "export requires checkpoint.dir and on_end",
     [](const Facts& f) -> Findings {
       const v1::Checkpoint& checkpoint = f.job.checkpoint();
       if (checkpoint.export_().empty() ||
           !f.IsValid({"checkpoint.dir", "checkpoint.on_end", "checkpoint.export"}))
         return {};
       if (!checkpoint.dir().empty() && checkpoint.on_end()) return {};
       return {{checkpoint.dir().empty() ? "there is no checkpoint.dir to write to"
                                         : "on_end is false, so there is no final checkpoint to export",
                "write checkpoint.dir and leave on_end out, or leave export out"}};
     }},
    {"checkpoint_export_model", kError, "checkpoint.export",
     "export requires a model with a Transformers family", ChecksExportedModel},
    {"checkpoint_format_known", kError, "checkpoint.format", "format must be fsdp_dtensor", ChecksFormat},
};

}  // namespace

absl::Span<const Rule> CheckpointRules() { return kRules; }

}  // namespace fsdpd
