#include "client/migrate/megatron_rules.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdpd {
namespace {

struct Case {
  const char* rule;
  const char* arguments;
  const char* before = "";  // For adjustments.
  const char* after = "";
};

// Each case violates exactly one rule.
const Case kCases[] = {
    {"one_fsdp", "--use-megatron-fsdp --use-torch-fsdp2"},
    {"fsdp_version_known", "--megatron-fsdp-version 3"},
    {"version_two", "--megatron-fsdp-version 2"},
    {"strategy_known", "--data-parallel-sharding-strategy zero3"},
    {"strategy_known", "--outer-dp-sharding-strategy optim_grads"},
    {"outer_optim_needs_params",
     "--outer-dp-sharding-strategy optim --data-parallel-sharding-strategy optim"},
    {"distributed_optimizer_on", "--no-use-distributed-optimizer", "false", "true"},
    {"average_in_collective_off", "--ddp-average-in-collective", "true", "false"},
    {"reuse_grad_buf_off", "--reuse-grad-buf-for-mxfp8-param-ag", "true", "false"},
    {"gradient_accumulation_fusion_off", "--gradient-accumulation-fusion", "true", "false"},
    {"overlap_on", "--no-overlap-param-gather", "false", "true"},
    {"overlap_on", "--no-overlap-grad-reduce --data-parallel-sharding-strategy optim_grads", "false", "true"},
    {"overlap_param_needs_grad", "--overlap-param-gather --no-overlap-grad-reduce"},
    {"precision_aware_optimizer", "--use-precision-aware-optimizer", "true",
     "precision.{main_grads,moments}"},
    {"types_need_precision_aware", "--main-grads-dtype bf16"},
    {"types_need_precision_aware", "--exp-avg-dtype fp32 --exp-avg-sq-dtype bf16"},
    {"nccl_buffers", "--use-nccl-ub", "true", "always"},
    {"nccl_buffers", "--fsdp-double-buffer", "true", "always"},
    {"manual_registration_needs_nccl_ub", "--fsdp-manual-registration"},
    {"one_bucket_knob", "--ddp-num-buckets 4 --ddp-bucket-size 1000"},
    {"one_bucket_knob", "--ddp-num-buckets 0"},
    {"rank_order", "--use-tp-pp-dp-mapping"},
    {"weight_hash_check", "--check-weight-hash-across-dp-replicas-interval 10"},
    {"fsdp_dtensor_only", "--save /ckpt --ckpt-format torch_dist"},
    {"fsdp_dtensor_only", "--load /ckpt --ckpt-format torch"},
    {"fsdp_dtensor_only", "--pretrained-checkpoint /ckpt --ckpt-format zarr"},
    {"torch_dist_load", "--load /ckpt", "parameters, optimizer, iteration", "parameters"},
    {"torch_dist_load", "--load /ckpt --ckpt-format torch_dist", "parameters, optimizer, iteration",
     "parameters"},
    {"no_load_optim", "--load /ckpt --ckpt-format fsdp_dtensor --no-load-optim", "parameters, iteration",
     "parameters"},
    {"fsdp_dtensor_needs_fsdp", "--use-torch-fsdp2 --ckpt-format fsdp_dtensor"},
    {"async_save_format", "--async-save --ckpt-format torch"},
    {"hf_sidecar", "--also-save-hf-checkpoint"},
    {"meta_init_with_no_shard", "--init-model-with-meta-device --data-parallel-sharding-strategy no_shard"},
    {"cpu_offload", "--cpu-offloading --pipeline-model-parallel-size 2"},
    {"cpu_offload", "--fine-grained-activation-offloading"},
    {"hybrid_context_parallel", "--hybrid-context-parallel"},
    {"optimizer_known", "--optimizer muon"},
    {"mixed_precision_wins", "mixed_precision: bf16_mixed\nmodel: {bf16: true, fp16: true}", "true", "false"},
    {"mixed_precision_wins", "mixed_precision: fp16_mixed\noptimizer: {bf16: true}", "true", "false"},
    {"one_half_precision", "--bf16 --fp16"},
    {"fp4_unsupported", "--fp4-format e2m1"},
    {"fp4_unsupported", "mixed_precision: bf16_with_nvfp4_mixed"},
    {"virtual_stages", "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2"},
    {"virtual_stages", "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"},
    {"connections", "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --bf16", "1", "unset"},
    {"graph_checks_nan", "--cuda-graph-scope full_iteration --check-for-nan-in-loss-and-grad"},
    {"per_token_loss", "--no-calculate-per-token-loss", "false", "true"},
};

LocatedViolations Check(const std::string& text) {
  Settings settings;
  EXPECT_TRUE(ReadSettings(text, "in", &settings).empty()) << text;
  return CheckMegatron(&settings);
}

TEST(MegatronRules, EachCaseViolatesOnlyItsRule) {
  for (const Case& each : kCases) {
    const LocatedViolations violations = Check(each.arguments);
    ASSERT_EQ(violations.size(), 1u) << each.arguments
                                     << (violations.empty() ? "" : "\n" + Render(violations.back()));
    EXPECT_EQ(violations[0].violation.rule, each.rule) << each.arguments;
    EXPECT_EQ(violations[0].violation.before, each.before) << each.arguments;
    EXPECT_EQ(violations[0].violation.after, each.after) << each.arguments;
    EXPECT_GT(violations[0].violation.reason.size(), 15u) << each.arguments;
  }
}

TEST(MegatronRules, SettlesContradictoryBridgeSections) {
  Settings settings;
  ASSERT_TRUE(
      ReadSettings("dist: {use_megatron_fsdp: false}\nddp: {use_megatron_fsdp: true, overlap_param_gather: "
                   "true}\noptimizer: {overlap_param_gather: false}\n",
                   "run_config.yaml", &settings)
          .empty());
  const LocatedViolations violations = CheckMegatron(&settings);
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(violations[0].violation.rule, "fsdp_flags_agree");
  EXPECT_EQ(violations[1].violation.rule, "sections_agree");
  EXPECT_TRUE(settings.Flag("use_megatron_fsdp"));
}

TEST(MegatronRules, RejectsExpandableSegmentsWithNcclBuffers) {
  const LocatedViolations violations =
      Check("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --use-nccl-ub");
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(violations[1].violation.rule, "expandable_segments");
}

TEST(MegatronRules, RejectsExpertsInTorchDistCheckpoints) {
  for (const char* model : {"--num-experts 8", "--multi-latent-attention"}) {
    const LocatedViolations violations = Check(std::string("--load /ckpt ") + model);
    ASSERT_EQ(violations.size(), 2u) << model;
    EXPECT_EQ(violations[1].violation.rule, "torch_dist_experts");
    EXPECT_EQ(violations[1].violation.level, ViolationLevel::kError);
  }
}

// Tensor-parallel scripts set it. Megatron refuses it only with --use-torch-fsdp2 or --use-megatron-fsdp.
TEST(MegatronRules, AcceptsOneCudaConnection) {
  EXPECT_EQ(Check("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --bf16")[0].violation.level,
            ViolationLevel::kAdjust);
}

TEST(MegatronRules, IgnoresVirtualStagesWithoutPipeline) {
  EXPECT_TRUE(Check("--num-layers-per-virtual-pipeline-stage 2").empty()) << "there are no stages";
}

TEST(MegatronRules, EveryRuleHasCase) {
  std::set<std::string> broken = {"fsdp_flags_agree", "sections_agree", "expandable_segments",
                                  "torch_dist_experts"};  // Tested above.
  for (const Case& each : kCases) broken.insert(each.rule);
  for (const MigrateRule& rule : MegatronRules()) EXPECT_EQ(broken.count(rule.id), 1u) << rule.id;
}

TEST(MegatronRules, AcceptsTypicalRun) {
  EXPECT_TRUE(
      Check("--use-megatron-fsdp --use-distributed-optimizer --ckpt-format fsdp_dtensor --save /c --bf16 "
            "--data-parallel-sharding-strategy optim_grads_params --init-model-with-meta-device")
          .empty());
}

}  // namespace
}  // namespace fsdpd
