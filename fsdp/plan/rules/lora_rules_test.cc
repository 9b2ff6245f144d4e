#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <tuple>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::JobSpec Job() {
  v1::JobSpec job;
  job.set_name("adapters");
  job.mutable_model()->set_preset("llama3-8b");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(1024);
  job.mutable_train()->set_steps(10);
  job.mutable_train()->mutable_lora()->set_rank(16);
  return job;
}

std::set<std::string> ErrorsOf(const v1::JobSpec& job) {
  std::set<std::string> ids;
  for (const Violation& violation : CheckJob(job)) {
    if (violation.level == ViolationLevel::kError) ids.insert(violation.rule);
  }
  return ids;
}

using Change = std::function<void(v1::JobSpec*)>;

// Two tensor-parallel ranks, each with half of the columns of w2.
v1::JobSpec OverTensor(int64_t intermediate_size) {
  v1::JobSpec job = Job();
  job.mutable_train()->mutable_lora()->set_base_type(v1::BASE_TYPE_NF4);
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(64);
  llama->set_hidden_size(128);
  llama->set_intermediate_size(intermediate_size);
  llama->set_layers(1);
  llama->set_heads(2);
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_parallel()->set_tensor(2);
  return job;
}

using Cases = std::vector<std::pair<std::string, Change>>;

const Cases kNf4Cases = {
    {"lora_base_type",
     [](auto* job) { job->mutable_train()->mutable_lora()->set_base_type(static_cast<v1::BaseType>(7)); }},
    {"lora_nf4_blocks",
     [](auto* job) {
       job->mutable_train()->mutable_lora()->set_base_type(v1::BASE_TYPE_NF4);
       job->mutable_model()->mutable_llama()->set_vocab_size(64);
       job->mutable_model()->mutable_llama()->set_hidden_size(24);
       job->mutable_model()->mutable_llama()->set_intermediate_size(36);
       job->mutable_model()->mutable_llama()->set_layers(1);
       job->mutable_model()->mutable_llama()->set_heads(3);
     }},
    {"lora_nf4_reshards",
     [](auto* job) {
       job->mutable_train()->mutable_lora()->set_base_type(v1::BASE_TYPE_NF4);
       job->mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
     }},
    {"lora_nf4_reshards",
     [](auto* job) {
       job->mutable_train()->mutable_lora()->set_base_type(v1::BASE_TYPE_NF4);
       job->mutable_fsdp()->set_keep_gathered(true);
     }},
    {"lora_nf4_blocks", [](auto* job) { *job = OverTensor(/*intermediate_size=*/192); }},
    {"lora_nf4_without_hfsdp",
     [](auto* job) {
       job->mutable_train()->mutable_lora()->set_base_type(v1::BASE_TYPE_NF4);
       job->mutable_resources()->set_ranks_per_node(4);
       job->mutable_fsdp()->mutable_outer()->set_size(2);
       job->mutable_fsdp()->mutable_outer()->set_strategy(v1::STRATEGY_OPTIM);
     }},
};

TEST(LoraRules, ReportsFrozenAndTargetsTogether) {
  v1::JobSpec job = Job();
  job.mutable_train()->add_frozen("layer.0.*");
  job.mutable_train()->mutable_lora()->add_targets("*.typo");
  EXPECT_EQ(ErrorsOf(job), (std::set<std::string>{"lora_targets_match", "lora_without_frozen"}));
}

TEST(LoraRules, AcceptsNf4WithTensorParallelismAndHsdp) {
  v1::JobSpec split = OverTensor(/*intermediate_size=*/256);
  EXPECT_EQ(ErrorsOf(split), std::set<std::string>());
  // Both ranks have all 2 x 32 numbers of the keys, which are of one head.
  v1::Llama* llama = split.mutable_model()->mutable_llama();
  llama->set_hidden_size(32);
  llama->set_head_size(2);
  llama->set_heads(64);
  llama->set_kv_heads(1);
  EXPECT_EQ(ErrorsOf(split), std::set<std::string>());
  v1::JobSpec hsdp = Job();
  hsdp.mutable_train()->mutable_lora()->set_base_type(v1::BASE_TYPE_NF4);
  hsdp.mutable_resources()->set_ranks_per_node(4);
  hsdp.mutable_fsdp()->mutable_outer()->set_size(2);
  EXPECT_EQ(ErrorsOf(hsdp), std::set<std::string>());
}

TEST(LoraRules, EachRuleHasAJobThatItRejects) {
  Cases cases = {
      {"lora_rank_range", [](auto* job) { job->mutable_train()->mutable_lora()->clear_rank(); }},
      {"lora_rank_range", [](auto* job) { job->mutable_train()->mutable_lora()->set_rank(1025); }},
      {"lora_alpha_range", [](auto* job) { job->mutable_train()->mutable_lora()->set_alpha(0); }},
      {"lora_alpha_range", [](auto* job) { job->mutable_train()->mutable_lora()->set_alpha(1e30); }},
      {"lora_scale_fits_fp16",
       [](auto* job) {
         job->mutable_precision()->set_compute(v1::DTYPE_FP16);
         job->mutable_train()->mutable_lora()->set_alpha(16 * 1024 + 1);
       }},
      {"lora_needs_llama", [](auto* job) { job->mutable_model()->set_preset("gpt2"); }},
      {"lora_targets_match", [](auto* job) { job->mutable_train()->mutable_lora()->add_targets("*.typo"); }},
      {"lora_without_frozen", [](auto* job) { job->mutable_train()->add_frozen("layer.0.*"); }},
      {"lora_without_fp8", [](auto* job) { job->mutable_precision()->set_compute(v1::DTYPE_FP8); }},
      {"lora_without_zero_bubble",
       [](auto* job) {
         job->mutable_resources()->set_ranks_per_node(2);
         job->mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
         job->mutable_parallel()->set_pipeline(2);
         for (const int units : {17, 17}) job->mutable_parallel()->add_stage_units(units);
         job->mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
       }},
      {"lora_base_model_path",
       [](auto* job) { job->mutable_train()->mutable_lora()->set_base_model("models/llama"); }},
      {"lora_export_needs_base",
       [](auto* job) {
         job->mutable_checkpoint()->set_dir("/runs");
         job->mutable_checkpoint()->set_export_("hf");
       }},
      {"lora_base_is_not_dir",
       [](auto* job) {
         job->mutable_train()->mutable_lora()->set_base_model("/models/llama");
         job->mutable_checkpoint()->set_dir("/models/llama");
       }},
      {"peft_needs_lora",
       [](auto* job) {
         job->mutable_train()->clear_lora();
         job->mutable_checkpoint()->set_dir("/runs");
         job->mutable_checkpoint()->set_export_("peft");
       }},
  };
  cases.insert(cases.end(), kNf4Cases.begin(), kNf4Cases.end());
  EXPECT_EQ(ErrorsOf(Job()), std::set<std::string>());
  std::set<std::string> tested;
  for (const auto& [rule, change] : cases) {
    v1::JobSpec job = Job();
    change(&job);
    EXPECT_EQ(ErrorsOf(job), std::set<std::string>{rule});
    tested.insert(rule);
  }
  for (const RuleText& rule : AllRules()) {
    const bool own = (rule.id.rfind("lora_", 0) == 0 && rule.level == ViolationLevel::kError) ||
                     rule.id == "peft_needs_lora";
    EXPECT_EQ(tested.count(rule.id) > 0, own) << rule.id;
  }
}

TEST(LoraRules, ExplainsTargetsThatCannotHaveAdapters) {
  v1::JobSpec job = Job();
  job.mutable_train()->mutable_lora()->add_targets("*.attention.*");
  job.mutable_train()->mutable_lora()->add_targets("head.*");
  const Violations found = CheckJob(job);
  const auto violation = std::find_if(
      found.begin(), found.end(), [](const Violation& each) { return each.rule == "lora_targets_match"; });
  ASSERT_NE(violation, found.end());
  EXPECT_EQ(violation->field, "train.lora.targets[1]");
  EXPECT_THAT(violation->reason,
              AllOf(HasSubstr("'head.*' matches head."), HasSubstr("embedding, head, norms")));
}

// PEFT's names of all matrices, and those of transformers without adapters.
TEST(LoraRules, SuggestsTargetsForNamesOfPeft) {
  const auto finding = [](const char* preset, const char* target) {
    v1::JobSpec job = Job();
    job.mutable_model()->set_preset(preset);
    job.mutable_train()->mutable_lora()->add_targets(target);
    std::string text;
    for (const Violation& each : CheckJob(job)) {
      if (each.rule == "lora_targets_match") text += each.reason + "; " + each.fix;
    }
    return text;
  };
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"llama3-8b", "q_proj", "'q_proj' matches no matrix; write '*.attention.wq'"},
      {"llama3-8b", "*.q_proj", "'*.q_proj' matches no matrix; write '*.attention.wq'"},
      {"llama3-8b", "k_proj", "'k_proj' matches no matrix; write '*.attention.wk'"},
      {"llama3-8b", "v_proj", "'v_proj' matches no matrix; write '*.attention.wv'"},
      {"llama3-8b", "o_proj", "'o_proj' matches no matrix; write '*.attention.wo'"},
      {"llama3-8b", "gate_proj", "'gate_proj' matches no matrix; write '*.ffn.w1'"},
      {"llama3-8b", "up_proj", "'up_proj' matches no matrix; write '*.ffn.w3'"},
      {"llama3-8b", "down_proj", "'down_proj' matches no matrix; write '*.ffn.w2'"},
      {"llama3-8b", "*self_attn*",
       "'*self_attn*' matches no matrix; write '*.attention.wk', '*.attention.wo', '*.attention.wq', "
       "'*.attention.wv'"},
      {"llama3-8b", "model.layers.3.mlp.down_proj",
       "'model.layers.3.mlp.down_proj' matches no matrix; write 'layer.3.ffn.w2'"},
      {"llama3-8b", "wq", "'wq' matches no matrix; write '*.attention.wq'"},
      {"llama3-8b", "all-linear",
       "'all-linear' is not a pattern; leave targets out: by default all these matrices get an adapter"},
      {"llama3-8b", "query_key_value",
       "'query_key_value' matches no matrix; write '*.attention.wk', '*.attention.wq', '*.attention.wv'"},
      {"llama3-8b", "transformer.h.*.attn.c_attn",
       "'transformer.h.*.attn.c_attn' matches no matrix; write '*.attention.wk', '*.attention.wq', "
       "'*.attention.wv'"},
      {"llama3-8b", "c_proj", "'c_proj' matches no matrix; write '*.attention.wo', '*.ffn.w2'"},
      {"llama3-8b", "dense_h_to_4h", "'dense_h_to_4h' matches no matrix; write '*.ffn.w1', '*.ffn.w3'"},
      {"deepseek-v3", "q_a_proj", "'q_a_proj' matches no matrix; write '*.attention.wq_a'"},
      {"deepseek-v3", "kv_a_proj_with_mqa",
       "'kv_a_proj_with_mqa' matches no matrix; write '*.attention.wkv_a'"},
      {"deepseek-v3", "down_proj", "'down_proj' matches no matrix; write '*.ffn.shared.w2', '*.ffn.w2'"},
  };
  for (const auto& [preset, target, text] : cases) EXPECT_EQ(finding(preset, target), text);
  for (const auto& [preset, target, matched] :
       {std::tuple("llama3-8b", "lm_head", "head.output"),
        std::tuple("llama3-8b", "embed_tokens", "embedding"),
        std::tuple("deepseek-v3", "kv_b_proj", "layer.60.attention.wkv_b"),
        std::tuple("mixtral-8x7b", "w2", "layer.31.ffn.experts.w2")})
    EXPECT_THAT(finding(preset, target), HasSubstr(std::string("' matches ") + matched));
  EXPECT_THAT(finding("llama3-8b", "*.layers.1*.q_proj"), HasSubstr("'layer.10.attention.wq', "));
  EXPECT_THAT(finding("llama3-8b", "typo"), HasSubstr("'typo' matches no parameter; "));
}

TEST(LoraRules, LimitsTheScaleOnlyInFp16) {
  v1::JobSpec job = Job();
  job.mutable_train()->mutable_lora()->set_alpha(1e6);
  EXPECT_EQ(ErrorsOf(job), std::set<std::string>());
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  EXPECT_EQ(ErrorsOf(job), std::set<std::string>{"lora_scale_fits_fp16"});
  job.mutable_train()->mutable_lora()->set_alpha(16 * 1024);
  EXPECT_EQ(ErrorsOf(job), std::set<std::string>());
  job.mutable_train()->mutable_lora()->set_rank_stabilized(true);
  EXPECT_EQ(ErrorsOf(job), std::set<std::string>{"lora_scale_fits_fp16"}) << "alpha / sqrt(rank)";
}

TEST(LoraRules, WarnsThatSelectionBiasesAreFrozen) {
  v1::JobSpec job = Job();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  for (const auto set : {&v1::Llama::set_vocab_size, &v1::Llama::set_hidden_size,
                         &v1::Llama::set_intermediate_size, &v1::Llama::set_layers, &v1::Llama::set_heads})
    (llama->*set)(64);
  llama->set_heads(4);
  v1::Llama::Experts* experts = llama->mutable_experts();
  experts->set_count(4);
  experts->set_per_token(2);
  experts->set_intermediate_size(64);
  experts->set_selection_bias(true);
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  experts->set_bias_update_rate(1e-3);
  EXPECT_EQ(ErrorsOf(job), std::set<std::string>());
  const auto warns = [&] {
    const Violations found = CheckJob(job);
    return std::any_of(found.begin(), found.end(),
                       [](const Violation& each) { return each.rule == "lora_balances_no_experts"; });
  };
  EXPECT_TRUE(warns());
  experts->clear_bias_update_rate();
  EXPECT_FALSE(warns());
}

// Groups may match adapters, for example a higher learning rate for B (LoRA+).
TEST(LoraRules, GroupsMatchAdapters) {
  v1::JobSpec job = Job();
  v1::ParamGroup* group = job.mutable_optimizer()->add_groups();
  group->add_params("*.lora_B");
  group->set_lr_scale(16);
  EXPECT_EQ(ErrorsOf(job), std::set<std::string>());
  job.mutable_train()->clear_lora();
  EXPECT_NE(ErrorsOf(job), std::set<std::string>());
}

}  // namespace
}  // namespace fsdpd
