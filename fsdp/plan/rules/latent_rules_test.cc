#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using Latent = v1::Llama::LatentAttention;

v1::JobSpec GoodJob() {
  v1::JobSpec job;
  job.set_name("tiny-latents");
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(129);  // Need not be divisible by heads.
  llama->set_intermediate_size(384);
  llama->set_layers(4);
  llama->set_heads(4);
  Latent* latent = llama->mutable_latent_attention();
  latent->set_rank(64);
  latent->set_query_rank(96);
  latent->set_plain_head_size(32);
  latent->set_rotary_head_size(16);
  latent->set_value_head_size(32);
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  return job;
}

struct BadCase {
  const char* rule;
  const char* field;
  std::function<void(v1::JobSpec*, v1::Llama*, Latent*)> spoil;
};

std::vector<BadCase> BadCases() {
  using J = v1::JobSpec;
  using L = v1::Llama;
  return {
      {"latent_rank_range", "model.llama.latent_attention.rank", [](J*, L*, Latent* l) { l->clear_rank(); }},
      {"latent_rank_range", "model.llama.latent_attention.rank", [](J*, L*, Latent* l) { l->set_rank(0); }},
      {"latent_query_rank_range", "model.llama.latent_attention.query_rank",
       [](J*, L*, Latent* l) { l->set_query_rank(1 << 18); }},
      {"latent_head_sizes", "model.llama.latent_attention.plain_head_size",
       [](J*, L*, Latent* l) { l->clear_plain_head_size(); }},
      {"latent_head_sizes", "model.llama.latent_attention.rotary_head_size",
       [](J*, L*, Latent* l) { l->set_rotary_head_size(15); }},
      {"latent_head_sizes", "model.llama.latent_attention.value_head_size",
       [](J*, L*, Latent* l) { l->set_value_head_size(-1); }},
      {"latent_head_sizes", "model.llama.latent_attention.plain_head_size",
       [](J*, L*, Latent* l) { l->set_plain_head_size(1020); }},
      {"latent_has_its_heads", "model.llama.kv_heads", [](J*, L* m, Latent*) { m->set_kv_heads(2); }},
      {"latent_has_its_heads", "model.llama.head_size", [](J*, L* m, Latent*) { m->set_head_size(32); }},
      {"latent_has_its_norms", "model.llama.qk_norm", [](J*, L* m, Latent*) { m->set_qk_norm(true); }},
      {"latent_has_its_norms", "model.llama.attention_bias",
       [](J*, L* m, Latent*) { m->set_attention_bias(true); }},
  };
}

TEST(LatentRules, EachCaseViolatesOnlyItsRule) {
  std::set<std::string> broken;
  for (const BadCase& bad : BadCases()) {
    v1::JobSpec job = GoodJob();
    v1::Llama* llama = job.mutable_model()->mutable_llama();
    bad.spoil(&job, llama, llama->mutable_latent_attention());
    std::vector<Violation> errors;
    for (const Violation& violation : CheckJob(job)) {
      if (violation.level == ViolationLevel::kError) errors.push_back(violation);
    }
    ASSERT_EQ(errors.size(), 1u) << bad.rule << ": " << job.DebugString();
    EXPECT_EQ(errors[0].rule, bad.rule);
    EXPECT_EQ(errors[0].field, bad.field);
    EXPECT_FALSE(errors[0].fix.empty());
    broken.insert(bad.rule);
  }
  for (const RuleText& rule : AllRules()) {
    if (rule.id.rfind("latent_", 0) != 0) continue;
    EXPECT_EQ(broken.count(rule.id), 1u) << rule.id;
  }
}

TEST(LatentRules, AcceptsLatentAttention) {
  v1::JobSpec job = GoodJob();
  EXPECT_TRUE(CheckJob(job).empty());
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_kv_heads(4);  // As in a resolved spec.
  llama->set_head_size(48);
  llama->mutable_latent_attention()->clear_query_rank();
  EXPECT_TRUE(CheckJob(job).empty());
}

TEST(LatentRules, RejectsNegativeYarnScales) {
  v1::JobSpec job = GoodJob();
  v1::Llama::RopeScaling* scaling = job.mutable_model()->mutable_llama()->mutable_rope_scaling();
  scaling->set_factor(40);
  scaling->mutable_yarn();
  EXPECT_TRUE(CheckJob(job).empty());
  for (const double wrong : {-1.0, 1e3, std::numeric_limits<double>::quiet_NaN()}) {
    scaling->mutable_yarn()->set_mscale(1);
    scaling->mutable_yarn()->set_mscale_all_dim(wrong);
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].field, "model.llama.rope_scaling.yarn.mscale_all_dim");
  }
}

}  // namespace
}  // namespace fsdpd
