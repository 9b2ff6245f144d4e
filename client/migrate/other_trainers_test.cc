#include "client/migrate/other_trainers.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <vector>

#include "client/migrate/settings.h"

namespace fsdpd {
namespace {

struct Case {
  const char* name;
  int line;
  const char* text;
};

const Case kCases[] = {
    {"a TOML file", 2, "title = \"run\"\n[[stages]]\nsteps = 9\n"},
    {"an axolotl configuration", 1,
     "base_model: NousResearch/Meta-Llama-3.1-8B\nsequence_len: 4096\noptimizer: adamw_torch\nbf16: auto\n"},
    // Regression: reported as an accelerate configuration.
    {"an axolotl configuration", 4,
     "fsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: false\nbase_model: Qwen/Qwen3-8B\n"},
    // Regression: reported as a job spec.
    {"a file of Hugging Face training arguments", 2,
     "output_dir: out\nper_device_train_batch_size: 1\nfsdp: full_shard auto_wrap\nbf16: true\n"},
    {"a file of Hugging Face training arguments", 1,
     "model_name_or_path: Qwen/Qwen3-8B\nmax_steps: 9\nfsdp_config: {fsdp_version: 2}\n"},
    // Regression: each of these produced a dozen unrelated errors.
    {"an fsdpd job spec", 2,
     "name: tiny\nmodel: {preset: tiny}\ndata: {synthetic: {}, sequence_length: 8}\ntrain: {steps: 3}\n"},
    {"an fsdpd job spec", 1,
     "{\"name\": \"a\", \"data\": {\"tokens\": [{\"path\": \"/data/a.bin\"}]}, \"train\": {\"steps\": 9}}"},
    {"a NeMo configuration", 5,
     "name: megatron_gpt\ntrainer:\n  devices: 8\n  precision: bf16\nexp_manager:\n  exp_dir: null\nmodel:\n"
     "  ffn_hidden_size: ${multiply:4, ${.hidden_size}}  # Of NeMo 1.\n"},
    {"a NeMo configuration", 4,
     "_target_: nemo.collections.llm.api.pretrain\n_partial_: true\ntrainer:\n"
     "  _target_: nemo.lightning.pytorch.trainer.Trainer\ndata:\n  seq_length: 8192\n"},
    {"a PyTorch Lightning configuration", 1,
     "trainer: {devices: 8, precision: bf16-mixed}\nmodel: {lr: 0.1}\n"},
    // Regression: these two were read as Megatron configurations.
    {"a PyTorch Lightning configuration", 2,
     "# lightning.pytorch==2.5\nfit:\n  seed_everything: true\n  trainer: {devices: 8, precision: bf16}\n"},
    {"an fsdpd job spec", 1, "train: {steps: 1}\n"},
    {"the config.json of a Hugging Face model", 1,
     "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 4096, \"model_type\": \"llama\"}"},
};

TEST(OtherTrainers, ReportsOneErrorPerFile) {
  for (const Case& each : kCases) {
    Settings settings;
    const LocatedViolations violations = ReadSettings(each.text, "in", &settings);
    ASSERT_EQ(violations.size(), 1u) << each.text;
    EXPECT_EQ(violations[0].violation.rule, "not_of_megatron") << each.text;
    EXPECT_EQ(violations[0].violation.level, ViolationLevel::kError);
    EXPECT_TRUE(absl::StartsWith(violations[0].violation.reason,
                                 absl::StrCat("not a Megatron configuration (got ", each.name, ")")))
        << violations[0].violation.reason;
    EXPECT_EQ(violations[0].place.line, each.line) << each.text;
    EXPECT_TRUE(settings.all().empty()) << each.text;
  }
}

TEST(OtherTrainers, RecognizesTrainersThatAreConverted) {
  const std::pair<Trainer, const char*> files[] = {
      {Trainer::kTorchtitan,
       "# Llama 3 8B\n[job]\ndump_folder = \"./outputs\"\n\n[model]\nname = \"llama3\"\n"
       "[parallelism]  # All ranks shard.\ndata_parallel_shard_degree = -1\n"},
      {Trainer::kDeepSpeed,
       "{\n  \"bf16\": {\"enabled\": true},\n  \"zero_optimization\": {\"stage\": 3}\n}\n"},
      {Trainer::kDeepSpeed, "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\"}}"},
      {Trainer::kAccelerate,
       "mixed_precision: bf16\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"},
      {Trainer::kAccelerate, "deepspeed_config: {zero_stage: 3}\nnum_machines: 2\n"},
  };
  for (const auto& [trainer, text] : files) {
    Settings settings;
    EXPECT_TRUE(ReadSettings(text, "in", &settings).empty()) << text;
    EXPECT_EQ(settings.trainer(), trainer) << text;
  }
}

TEST(OtherTrainers, AcceptsMegatronConfigurations) {
  for (const char* text : {
           "TP=8\nARGS=(\n  --num-layers 32\n  --bf16\n)\ntorchrun pretrain_gpt.py \"${ARGS[@]}\"\n",
           "# [training]\n--lr 3e-4 --bf16\n",
           "['--num-layers', '32', '--lr', '3e-4']",
           "if [[ -f x ]]; then\n  TP=8\nfi\ntorchrun pretrain_gpt.py --bf16\n",
           "mixed_precision: bf16_mixed\nmodel: {num_layers: 8}\ntrain: {train_iters: 9}\n",
           "{\"model\": {\"num_layers\": 8}, \"ddp\": {\"use_megatron_fsdp\": true}}",
       }) {
    Settings settings;
    EXPECT_TRUE(ReadSettings(text, "in", &settings).empty()) << text;
    EXPECT_FALSE(settings.all().empty()) << text;
  }
}

}  // namespace
}  // namespace fsdpd
