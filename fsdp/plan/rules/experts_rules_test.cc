#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using testing::HasSubstr;

v1::JobSpec GoodJob() {
  v1::JobSpec job;
  job.set_name("tiny-experts");
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(128);
  llama->set_intermediate_size(384);
  llama->set_layers(4);
  llama->set_heads(4);
  llama->mutable_experts()->set_count(8);
  llama->mutable_experts()->set_per_token(2);
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  return job;
}

using Experts = v1::Llama::Experts;

struct BadCase {
  const char* rule;
  const char* field;  // Below experts; empty: experts itself.
  std::function<void(v1::JobSpec*, Experts*)> spoil;
};

// In an otherwise valid model.
std::function<void(v1::JobSpec*, Experts*)> WithRate(double rate) {
  return [rate](v1::JobSpec*, Experts* experts) {
    experts->set_bias_update_rate(rate);
    experts->set_scores(Experts::SCORES_SIGMOID);
    experts->set_selection_bias(true);
  };
}

std::vector<BadCase> BadCases() {
  using J = v1::JobSpec;
  return {
      {"experts_count_range", "count", [](J*, Experts* e) { e->set_count(0); }},
      {"experts_count_range", "count", [](J*, Experts* e) { e->clear_count(); }},
      {"experts_per_token_range", "per_token", [](J*, Experts* e) { e->set_per_token(9); }},
      {"experts_per_token_range", "per_token", [](J*, Experts* e) { e->set_per_token(0); }},
      {"experts_per_token_range", "per_token", [](J*, Experts* e) { e->clear_per_token(); }},
      {"experts_top_1_normalized", "normalized", [](J*, Experts* e) { e->set_per_token(1); }},
      {"experts_top_1_normalized", "normalized",
       [](J*, Experts* e) {
         e->set_per_token(1);
         e->set_normalized(true);
         e->set_balance_loss(0.01);
       }},
      {"experts_intermediate_size_range", "intermediate_size",
       [](J*, Experts* e) { e->set_intermediate_size(0); }},
      {"experts_dense_layers_range", "dense_layers", [](J*, Experts* e) { e->set_dense_layers(4); }},
      {"experts_dense_layers_range", "dense_layers", [](J*, Experts* e) { e->set_dense_layers(-1); }},
      {"experts_losses_not_negative", "balance_loss", [](J*, Experts* e) { e->set_balance_loss(-0.01); }},
      {"experts_losses_not_negative", "z_loss",
       [](J*, Experts* e) { e->set_z_loss(std::numeric_limits<double>::infinity()); }},
      {"experts_groups_range", "groups", [](J*, Experts* e) { e->set_groups(3); }},
      {"experts_groups_range", "groups", [](J*, Experts* e) { e->set_groups(8); }},
      {"experts_groups_range", "groups", [](J*, Experts* e) { e->set_groups(0); }},
      {"experts_groups_range", "groups_per_token", [](J*, Experts* e) { e->set_groups_per_token(2); }},
      {"experts_groups_range", "groups_per_token",
       [](J*, Experts* e) {
         e->set_groups(4);
         e->set_groups_per_token(1);
         e->set_per_token(3);
       }},
      {"experts_group_scores_of_groups", "group_scores",
       [](J*, Experts* e) { e->set_group_scores(Experts::GROUP_SCORES_BEST); }},
      {"experts_losses_not_negative", "balance_loss", [](J*, Experts* e) { e->set_balance_loss(1e300); }},
      {"experts_losses_not_negative", "z_loss", [](J*, Experts* e) { e->set_z_loss(1e300); }},
      {"experts_weight_scale_positive", "weight_scale", [](J*, Experts* e) { e->set_weight_scale(1e300); }},
      {"experts_weight_scale_positive", "weight_scale", [](J*, Experts* e) { e->set_weight_scale(1e-300); }},
      {"experts_weight_scale_positive", "weight_scale", [](J*, Experts* e) { e->set_weight_scale(0); }},
      {"experts_shared_intermediate_size_range", "shared_intermediate_size",
       [](J*, Experts* e) { e->set_shared_intermediate_size(0); }},
      {"experts_bias_update_rate", "bias_update_rate", WithRate(-0.001)},
      {"experts_bias_update_rate", "bias_update_rate", WithRate(1.5)},
      {"experts_bias_update_rate", "bias_update_rate", WithRate(std::numeric_limits<double>::infinity())},
      {"experts_bias_update_rate", "bias_update_rate", WithRate(std::numeric_limits<double>::quiet_NaN())},
      {"experts_bias_update_rate", "bias_update_rate",
       [](J*, Experts* e) {
         e->set_bias_update_rate(0.001);
         e->set_selection_bias(true);
       }},
      {"experts_bias_update_rate", "bias_update_rate",
       [](J*, Experts* e) {
         e->set_bias_update_rate(0.001);
         e->set_scores(Experts::SCORES_SIGMOID);
       }},
      {"experts_slow_products", "",
       [](J* j, Experts*) {
         j->mutable_resources()->set_device(v1::DEVICE_CUDA);
         j->mutable_precision()->set_compute(v1::DTYPE_FP32);
       }},
      {"experts_slow_products", "",
       [](J* j, Experts* e) {
         j->mutable_resources()->set_device(v1::DEVICE_CUDA);
         j->mutable_precision()->set_compute(v1::DTYPE_BF16);
         e->set_intermediate_size(60);
       }},
  };
}

TEST(ExpertsRules, EachCaseViolatesOnlyItsRule) {
  std::set<std::string> broken;
  for (const BadCase& bad : BadCases()) {
    v1::JobSpec job = GoodJob();
    bad.spoil(&job, job.mutable_model()->mutable_llama()->mutable_experts());
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1u) << bad.rule << ": " << job.DebugString();
    EXPECT_EQ(found[0].rule, bad.rule);
    const std::string field = bad.field;
    EXPECT_EQ(found[0].field, "model.llama.experts" + (field.empty() ? "" : "." + field));
    EXPECT_FALSE(found[0].fix.empty());
    broken.insert(bad.rule);
  }
  for (const RuleText& rule : AllRules()) {
    if (rule.id.rfind("experts_", 0) == 0) EXPECT_EQ(broken.count(rule.id), 1u) << rule.id;
  }
}

TEST(ExpertsRules, WarnsOfSlowProductsOfPreset) {
  v1::JobSpec job = GoodJob();
  job.mutable_model()->set_preset("mixtral-8x7b");
  job.mutable_resources()->set_device(v1::DEVICE_CUDA);
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  const Violations found = CheckJob(job);
  EXPECT_TRUE(std::any_of(found.begin(), found.end(),
                          [](const Violation& each) { return each.rule == "experts_slow_products"; }));
}

TEST(ExpertsRules, AcceptsModelWithExperts) {
  v1::JobSpec job = GoodJob();
  EXPECT_FALSE(HasErrors(CheckJob(job)));
  Experts* experts = job.mutable_model()->mutable_llama()->mutable_experts();
  experts->set_per_token(8);
  experts->set_dense_layers(3);
  experts->set_intermediate_size(7);
  experts->set_balance_loss(0.01);
  EXPECT_FALSE(HasErrors(CheckJob(job)));
}

TEST(ExpertsRules, AcceptsUnnormalizedTopOne) {
  v1::JobSpec job = GoodJob();
  Experts* experts = job.mutable_model()->mutable_llama()->mutable_experts();
  experts->set_per_token(1);
  experts->set_normalized(false);
  EXPECT_TRUE(CheckJob(job).empty());
}

TEST(ExpertsRules, AcceptsSelectionBias) {
  for (const double rate : {0.0, 0.001, 1.0}) {
    v1::JobSpec job = GoodJob();
    WithRate(rate)(&job, job.mutable_model()->mutable_llama()->mutable_experts());
    EXPECT_FALSE(HasErrors(CheckJob(job))) << rate;
  }
}

TEST(ExpertsRules, AcceptsAlignedSizesOnCuda) {
  v1::JobSpec job = GoodJob();
  job.mutable_resources()->set_device(v1::DEVICE_CUDA);
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  EXPECT_TRUE(CheckJob(job).empty());
}

TEST(ExpertsRules, ChecksTensorParallelPerExpert) {
  v1::JobSpec job = GoodJob();
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_parallel()->set_tensor(2);
  EXPECT_FALSE(HasErrors(CheckJob(job)));
  job.mutable_model()->mutable_llama()->mutable_experts()->set_intermediate_size(63);
  const Violations found = CheckJob(job);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rule, "parallel_tensor_cuts_model");
  EXPECT_EQ(found[0].reason, "63 columns of an expert do not split into 2 equal parts");
}

TEST(ExpertsRules, AcceptsGroupOfOneExpertByBestScore) {
  v1::JobSpec job = GoodJob();
  v1::Llama::Experts* experts = job.mutable_model()->mutable_llama()->mutable_experts();
  experts->set_groups(experts->count());
  experts->set_groups_per_token(experts->per_token());
  EXPECT_EQ(CheckJob(job).at(0).rule, "experts_groups_range");
  experts->set_group_scores(Experts::GROUP_SCORES_BEST);
  EXPECT_TRUE(CheckJob(job).empty());
}

TEST(ExpertsRules, ExportsOnlyTransformersFamilies) {
  const auto refused = [](const std::function<void(v1::Llama*)>& change) {
    v1::JobSpec job = GoodJob();
    job.mutable_checkpoint()->set_dir("/runs/1");
    job.mutable_checkpoint()->set_export_("hf");
    change(job.mutable_model()->mutable_llama());
    const Violations found = CheckJob(job);
    return !found.empty() && found[0].rule == "checkpoint_export_model";
  };
  const auto reason = [](const std::function<void(v1::Llama*)>& change) {
    v1::JobSpec job = GoodJob();
    job.mutable_checkpoint()->set_dir("/runs/1");
    job.mutable_checkpoint()->set_export_("hf");
    change(job.mutable_model()->mutable_llama());
    const Violations found = CheckJob(job);
    return found.empty() ? std::string() : found[0].reason;
  };
  EXPECT_FALSE(refused([](v1::Llama*) {}));  // Mixtral.
  EXPECT_THAT(
      reason([](v1::Llama* l) { l->mutable_experts()->set_scores(v1::Llama::Experts::SCORES_SIGMOID); }),
      HasSubstr("the nearest family, dots1 (sigmoid scores), requires qk_norm, selection_bias, "
                "a shared_intermediate_size"));
  EXPECT_THAT(reason([](v1::Llama* l) {
                l->set_qk_norm(true);
                l->mutable_experts()->set_weight_scale(2);
              }),
              HasSubstr("the nearest family, Qwen3-MoE (qk_norm), requires no weight_scale"));
  EXPECT_THAT(reason([](v1::Llama* l) {
                v1::Llama::LatentAttention* latent = l->mutable_latent_attention();
                latent->set_rank(16);
                latent->set_plain_head_size(8);
                latent->set_rotary_head_size(8);
                latent->set_value_head_size(8);
                latent->set_interleaved(false);
                l->clear_kv_heads();
                l->clear_head_size();
              }),
              HasSubstr("requires normalized: false, interleaved: true, a shared_intermediate_size"));
  EXPECT_TRUE(refused([](v1::Llama* l) { l->mutable_experts()->set_dense_layers(1); }));
  EXPECT_TRUE(refused([](v1::Llama* l) { l->mutable_experts()->set_normalized(false); }));
  EXPECT_TRUE(refused([](v1::Llama* l) { l->set_attention_bias(true); }));
  EXPECT_FALSE(refused([](v1::Llama* l) {  // Qwen3-MoE.
    l->set_qk_norm(true);
    l->mutable_experts()->set_normalized(false);
    l->mutable_experts()->set_dense_layers(1);
  }));
}

}  // namespace
}  // namespace fsdpd
