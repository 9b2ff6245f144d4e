#include "client/migrate/other_trainers.h"

#include <absl/strings/str_split.h>

#include <string>

#include "client/migrate/conversion_rules.h"

namespace fsdpd {
namespace {

constexpr char kWriteSpec[] = "write a job spec; `fsdpctl explain` describes its fields";

// A kind of file and keys that no Megatron configuration has.
struct Kind {
  const char* name;  // Empty: a trainer that is converted.
  const char* keys;  // One match suffices. "model.preset" is a path from the root.
  const char* fix = kWriteSpec;
  Trainer trainer = Trainer::kMegatron;
};

constexpr Kind kKinds[] = {
    {"", "zero_optimization train_micro_batch_size_per_gpu train_batch_size zero_allow_untested_optimizer",
     "", Trainer::kDeepSpeed},
    // Before accelerate, because training arguments may have fsdp_config too.
    {"a file of Hugging Face training arguments", "per_device_train_batch_size model_name_or_path"},
    {"an axolotl configuration", "base_model base_model_config"},
    {"", "distributed_type compute_environment fsdp_config deepspeed_config megatron_lm_config", "",
     Trainer::kAccelerate},
    // Before the job spec, because recipes of NeMo 2 have `data` too.
    {"a NeMo configuration", "exp_manager trainer._target_ step_scheduler",
     "give the run_config.yaml of the same training in Megatron Bridge, or write a job spec; "
     "`fsdpctl explain` describes its fields"},
    {"a PyTorch Lightning configuration", "trainer fit seed_everything"},
    {"an fsdpd job spec",
     "model.preset model.hf_config model.llama model.gpt2 model.plugin model.package data.tokens "
     "data.synthetic data.sequence_length train.steps train.micro_batch train.global_batch optimizer.adamw "
     "optimizer.sgd precision.compute fsdp.strategy parallel.tensor checkpoint.dir",
     "run `fsdpctl validate -f` and `fsdpctl submit -f` without a migration"},
    {"the config.json of a Hugging Face model", "model_type architectures",
     "write model: {hf_config: PATH} in a job spec"},
};

// Returns the node at a dotted path, or null.
const TextNode* FindByPath(const TextNode& root, absl::string_view path) {
  const TextNode* node = &root;
  for (const absl::string_view key : absl::StrSplit(path, '.')) {
    if (node == nullptr || node->kind != TextNode::Kind::kMap) return nullptr;
    node = node->Find(key);
  }
  return node;
}

}  // namespace

LocatedViolations FindTrainer(const TextNode& root, Trainer* trainer) {
  for (const Kind& kind : kKinds) {
    for (const absl::string_view key : absl::StrSplit(kind.keys, ' ')) {
      const TextNode* found = FindByPath(root, key);
      if (found == nullptr) continue;
      *trainer = kind.trainer;
      if (*kind.name == '\0') return {};
      return {{found->key_place, MakeViolation("not_of_megatron", "", {kind.name, kind.fix})}};
    }
  }
  return {};
}

LocatedViolations FindTrainerOfToml(const TextNode& root, const Place& section, Trainer* trainer) {
  for (const char* key : {"activation_checkpoint", "lr_scheduler", "parallelism", "training"}) {
    if (root.Find(key) == nullptr) continue;
    *trainer = Trainer::kTorchtitan;
    return {};
  }
  return {{section, MakeViolation("not_of_megatron", "", {"a TOML file", kWriteSpec})}};
}

}  // namespace fsdpd
