#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd {
namespace {

v1::JobSpec GoodJob() {
  v1::JobSpec job;
  job.set_name("tiny-fp8");
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(128);
  llama->set_intermediate_size(384);
  llama->set_layers(4);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_precision()->set_compute(v1::DTYPE_FP8);
  job.mutable_resources()->set_device(v1::DEVICE_CUDA);
  return job;
}

v1::Llama::Experts* AddExperts(int64_t width, v1::JobSpec* job) {
  v1::Llama::Experts* experts = job->mutable_model()->mutable_llama()->mutable_experts();
  experts->set_count(8);
  experts->set_per_token(2);
  experts->set_intermediate_size(width);
  return experts;
}

struct BadCase {
  const char* rule;
  const char* field;
  std::function<void(v1::JobSpec*)> spoil;
};

v1::Optimizer* NarrowMoments(double clip_norm, v1::JobSpec* job) {
  job->mutable_precision()->set_moments(v1::DTYPE_FP8);
  job->mutable_optimizer()->set_clip_norm(clip_norm);
  return job->mutable_optimizer();
}

std::vector<BadCase> BadCases() {
  using J = v1::JobSpec;
  const auto keep = [](J* j, const char* pattern) {
    j->mutable_precision()->mutable_fp8()->add_keep_bf16(pattern);
  };
  return {
      {"fp8_needs_llama", "precision.compute", [](J* j) { j->mutable_model()->set_preset("gpt2"); }},
      {"fp8_sizes", "precision.compute",
       [](J* j) { j->mutable_model()->mutable_llama()->set_intermediate_size(380); }},
      {"fp8_sizes", "precision.compute",
       [](J* j) {
         j->mutable_model()->mutable_llama()->set_hidden_size(120);
         j->mutable_model()->mutable_llama()->set_head_size(32);
       }},
      {"fp8_sizes", "precision.compute",
       [](J* j) {  // 24 per rank.
         j->mutable_model()->mutable_llama()->set_intermediate_size(48);
         j->mutable_resources()->set_ranks_per_node(2);
         j->mutable_parallel()->set_tensor(2);
       }},
      {"fp8_keep_matches", "precision.fp8.keep_bf16[1]",
       [keep](J* j) {
         keep(j, "layer.0.*");
         keep(j, "layer.4.*");
       }},
      {"fp8_keep_matches", "precision.fp8.keep_bf16[0]", [keep](J* j) { keep(j, "head.output"); }},
      {"fp8_keep_matches", "precision.fp8.keep_bf16[0]", [keep](J* j) { keep(j, "*_norm"); }},
      {"fp8_keep_matches", "precision.fp8.keep_bf16[0]",
       [keep](J* j) {
         j->mutable_model()->set_preset("llama3-8b");
         keep(j, "layer.32.*");
       }},
      {"fp8_keep_matches", "precision.fp8.keep_bf16", [keep](J* j) { keep(j, "*"); }},
      {"fp8_keep_leaves_some", "precision.fp8.keep_bf16",
       [keep](J* j) {
         for (const char* pattern : {"*.wk", "*.wo", "*.w3", "*.w2"}) keep(j, pattern);
       }},
      {"fp8_on_cpu_is_slow", "precision.compute",
       [](J* j) { j->mutable_resources()->set_device(v1::DEVICE_CPU); }},
      {"fp8_sizes", "precision.compute", [](J* j) { AddExperts(1032, j); }},
      {"fp8_sizes", "precision.compute", [](J* j) { AddExperts(1024, j)->set_shared_intermediate_size(40); }},
      {"fp8_most_experts", "model.llama.experts.count", [](J* j) { AddExperts(1024, j)->set_count(1024); }},
      {"fp8_narrow_experts", "precision.fp8.keep_bf16", [](J* j) { AddExperts(768, j); }},
      {"fp8_without_compute", "precision.fp8",
       [keep](J* j) {
         keep(j, "layer.0.*");
         j->mutable_precision()->set_compute(v1::DTYPE_BF16);
       }},
      {"main_params_fp32", "precision.main_params",
       [](J* j) { j->mutable_precision()->set_main_params(v1::DTYPE_FP8); }},
      {"main_grads_not_fp16", "precision.main_grads",
       [](J* j) { j->mutable_precision()->set_main_grads(v1::DTYPE_FP8); }},
      {"grad_comm_not_fp16", "precision.grad_comm",
       [](J* j) { j->mutable_precision()->set_grad_comm(v1::DTYPE_FP8); }},
      {"fp8_moments_clipped", "precision.moments", [](J* j) { NarrowMoments(0, j); }},
      {"fp8_moments_clipped", "precision.moments", [](J* j) { NarrowMoments(4.5, j); }},
      {"fp8_moments_clipped", "precision.moments",
       [](J* j) { NarrowMoments(1, j)->mutable_sgd()->set_lr(0.1); }},
      {"fp8_moments_forget", "precision.moments",
       [](J* j) {
         auto* betas = NarrowMoments(1, j)->mutable_adamw()->mutable_betas();
         betas->Add(0.9);
         betas->Add(0.999);
       }},
  };
}

TEST(Fp8Rules, ReportsEachViolationWithItsField) {
  EXPECT_TRUE(CheckJob(GoodJob()).empty());
  for (const BadCase& bad : BadCases()) {
    v1::JobSpec job = GoodJob();
    bad.spoil(&job);
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1) << bad.rule;
    EXPECT_EQ(found[0].rule, bad.rule);
    EXPECT_EQ(found[0].field, bad.field) << bad.rule;
    EXPECT_FALSE(found[0].reason.empty());
    EXPECT_FALSE(found[0].fix.empty());
  }
}

TEST(Fp8Rules, CoversEveryRule) {
  std::set<std::string> broken;
  for (const BadCase& bad : BadCases()) broken.insert(bad.rule);
  for (const RuleText& rule : AllRules()) {
    if (rule.id.rfind("fp8_", 0) == 0) EXPECT_EQ(broken.count(rule.id), 1u) << rule.id;
  }
}

TEST(Fp8Rules, SupportsFp8MomentsWithAnyComputeType) {
  v1::JobSpec job = GoodJob();
  job.mutable_precision()->set_moments(v1::DTYPE_FP8);
  job.mutable_optimizer()->set_clip_norm(kFp8MomentNorm);
  for (const v1::DType compute : {v1::DTYPE_FP8, v1::DTYPE_BF16, v1::DTYPE_FP16, v1::DTYPE_FP32}) {
    job.mutable_precision()->set_compute(compute);
    EXPECT_TRUE(CheckJob(job).empty()) << compute;
  }
}

// Regression test: fp16 moments were only offered bf16 as a replacement.
TEST(Fp8Rules, SuggestsFp8MomentsInsteadOfFp16) {
  v1::JobSpec job = GoodJob();
  job.mutable_precision()->set_moments(v1::DTYPE_FP16);
  const auto fix = [&] {
    const Violations found = CheckJob(job);
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? "" : found[0].fix;
  };
  job.mutable_optimizer()->set_clip_norm(1);
  EXPECT_EQ(fix(), "write fp32, bf16 or fp8, or leave it out");
  job.mutable_optimizer()->set_clip_norm(0);
  EXPECT_EQ(fix(), "write fp32 or bf16, or leave it out");
  job.mutable_optimizer()->set_clip_norm(1);
  job.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  EXPECT_EQ(fix(), "write fp32 or bf16, or leave it out");
}

TEST(Fp8Rules, IgnoresUnusedFeedForwardSize) {
  v1::JobSpec job = GoodJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_intermediate_size(380);
  AddExperts(48, &job);
  EXPECT_FALSE(HasErrors(CheckJob(job)));
  llama->mutable_experts()->set_dense_layers(1);
  EXPECT_TRUE(HasErrors(CheckJob(job)));
}

TEST(Fp8Rules, IgnoresSizesOfBf16Matrices) {
  v1::JobSpec job = GoodJob();
  AddExperts(1000, &job)->set_shared_intermediate_size(40);
  EXPECT_TRUE(HasErrors(CheckJob(job)));
  for (const char* pattern : {"*.experts.w1", "*.experts.w2", "*.shared.*"})
    job.mutable_precision()->mutable_fp8()->add_keep_bf16(pattern);
  EXPECT_TRUE(CheckJob(job).empty());
}

TEST(Fp8Rules, AcceptsNarrowExpertsInBf16) {
  v1::JobSpec job = GoodJob();
  AddExperts(768, &job);
  job.mutable_precision()->mutable_fp8()->add_keep_bf16("*.experts.*");
  EXPECT_TRUE(CheckJob(job).empty());
}

TEST(Fp8Rules, SuggestsNearestValidSizes) {
  v1::JobSpec job = GoodJob();
  job.mutable_model()->mutable_llama()->set_intermediate_size(380);
  EXPECT_EQ(CheckJob(job)[0].fix, "write intermediate_size 368 or 384, or precision.compute: bf16");
  job.mutable_model()->mutable_llama()->set_intermediate_size(48);
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_parallel()->set_tensor(2);
  EXPECT_EQ(CheckJob(job)[0].fix, "write intermediate_size 32 or 64, or precision.compute: bf16");
  job = GoodJob();
  job.mutable_model()->mutable_llama()->set_head_size(10);
  EXPECT_EQ(CheckJob(job)[0].fix,
            "write heads and a head_size with a product of 32 or 48, or precision.compute: bf16");
  EXPECT_EQ(CheckJob(job)[1].fix,
            "write kv_heads and a head_size with a product of 16 or 32, or precision.compute: bf16");
}

TEST(Fp8Rules, AcceptsFirstAndLastLayersInBf16) {
  v1::JobSpec job = GoodJob();
  for (const char* pattern : {"layer.0.*", "layer.3.*", "*.attention.wq"}) {
    job.mutable_precision()->mutable_fp8()->add_keep_bf16(pattern);
  }
  EXPECT_TRUE(CheckJob(job).empty());
}

}  // namespace
}  // namespace fsdpd
