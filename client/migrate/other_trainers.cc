#include "client/migrate/other_trainers.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace fsdpd {
namespace {

constexpr char kWriteSpec[] = "write a job spec; `fsdpctl explain` describes its fields";

LocatedViolation FaultOf(const Place& place, const std::string& name, const char* fix = kWriteSpec) {
  return {place,
          {"not_of_megatron", ViolationLevel::kError, "",
           absl::StrCat("not a Megatron configuration (got ", name, ")"), fix, "", ""}};
}

bool IsBareWord(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

// Returns the name in "[name]" or "[[name]]", with or without a comment after it; empty for any other line.
absl::string_view SectionOf(absl::string_view line) {
  line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
  if (!absl::ConsumePrefix(&line, "[") || !absl::ConsumeSuffix(&line, "]")) return {};
  if (absl::ConsumePrefix(&line, "[")) absl::ConsumeSuffix(&line, "]");
  line = absl::StripAsciiWhitespace(line);
  return IsBareWord(line) ? line : absl::string_view();
}

bool IsAssignment(absl::string_view line) {
  const size_t equals = line.find('=');
  return equals != absl::string_view::npos && IsBareWord(absl::StripAsciiWhitespace(line.substr(0, equals)));
}

// A trainer and keys that no Megatron configuration has.
struct Trainer {
  const char* name;
  std::vector<absl::string_view> keys;  // One match suffices. "model.preset" is a path from the root.
  const char* fix = kWriteSpec;
};

const std::vector<Trainer>& Trainers() {
  static const auto* trainers = new std::vector<Trainer>{
      {"a DeepSpeed configuration",
       {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size",
        "zero_allow_untested_optimizer"}},
      // Before accelerate, because training arguments may have fsdp_config too.
      {"a file of Hugging Face training arguments", {"per_device_train_batch_size", "model_name_or_path"}},
      {"an axolotl configuration", {"base_model", "base_model_config"}},
      {"an accelerate configuration",
       {"distributed_type", "compute_environment", "fsdp_config", "deepspeed_config", "megatron_lm_config"}},
      // Before the job spec, because recipes of NeMo 2 have `data` too.
      {"a NeMo configuration",
       {"exp_manager", "trainer._target_", "step_scheduler"},
       "give the run_config.yaml of the same training in Megatron Bridge, or write a job spec; "
       "`fsdpctl explain` describes its fields"},
      {"a PyTorch Lightning configuration", {"trainer", "fit", "seed_everything"}},
      {"an fsdpd job spec",
       {"model.preset", "model.hf_config", "model.llama", "model.gpt2", "model.plugin", "data.tokens",
        "data.synthetic", "data.sequence_length", "train.steps", "train.micro_batch", "train.global_batch",
        "optimizer.adamw", "optimizer.sgd", "precision.compute", "fsdp.strategy", "parallel.tensor",
        "checkpoint.dir"},
       "run `fsdpctl validate -f` and `fsdpctl submit -f` without a migration"},
      {"the config.json of a Hugging Face model",
       {"model_type", "architectures"},
       "write model: {hf_config: PATH} in a job spec"},
  };
  return *trainers;
}

// Returns the node at a dotted path, or null.
const TextNode* FindByPath(const TextNode& root, absl::string_view path) {
  const TextNode* node = &root;
  for (const absl::string_view key : absl::StrSplit(path, '.')) {
    if (node->kind != TextNode::Kind::kMap) return nullptr;
    node = node->Find(key);
    if (node == nullptr) return nullptr;
  }
  return node;
}

}  // namespace

std::optional<LocatedViolation> FindToml(absl::string_view text, const std::string& file) {
  // Sections that distinguish torchtitan from other TOML files.
  static const auto* torchtitan =
      new std::set<absl::string_view>{"activation_checkpoint", "lr_scheduler", "parallelism", "training"};
  Place first;
  bool titan = false, assigns = false;
  int line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    const absl::string_view section = SectionOf(line);
    if (!section.empty()) {
      if (first.line == 0) first = {file, line_number, 1};
      titan |= torchtitan->count(section) > 0;
    } else if (first.line == 0 && !absl::StripAsciiWhitespace(line.substr(0, line.find('#'))).empty() &&
               !IsAssignment(line)) {
      return std::nullopt;  // A TOML file begins with a section or an assignment.
    }
    assigns |= first.line > 0 && IsAssignment(line);
  }
  if (first.line == 0 || !assigns) return std::nullopt;
  return FaultOf(first, titan ? "a torchtitan configuration (TOML)" : "a TOML file");
}

std::optional<LocatedViolation> FindOtherTrainer(const TextNode& root) {
  for (const Trainer& trainer : Trainers()) {
    for (const absl::string_view key : trainer.keys) {
      if (const TextNode* found = FindByPath(root, key); found != nullptr)
        return FaultOf(found->key_place, trainer.name, trainer.fix);
    }
  }
  return std::nullopt;
}

}  // namespace fsdpd
