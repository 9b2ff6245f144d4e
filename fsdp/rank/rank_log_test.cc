#include "fsdp/rank/rank_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RankLog, TableIsAlignedAndShowsResolvedSpec) {
  v1::JobSpec job;
  job.set_name("test");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(64);
  job.mutable_train()->set_steps(10);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  job.mutable_resources()->set_ranks_per_node(2);
  const Plan plan = MakePlan(job, 0);
  ASSERT_TRUE(plan.accepted());
  v1::RankLaunch launch;
  launch.set_job_id("test-abc123");
  launch.set_attempt(2);
  launch.set_rank(1);
  launch.set_world_size(2);
  const std::vector<std::string> table = ConfigTable(plan, launch);
  EXPECT_EQ(table[0], "job              test-abc123, attempt 2");
  EXPECT_EQ(table[1], "rank             1 of 2 on cpu");
  EXPECT_THAT(table, Contains("strategy         optim_grads_params"));
  EXPECT_THAT(table, Contains("batch            2 samples: 1 micro-batches of 1 on each of 2 ranks"));
  for (const std::string& line : table) {
    EXPECT_EQ(line.substr(15, 2), "  ") << line;
    EXPECT_NE(line[17], ' ') << line;
  }
}

TEST(RankLog, TableShowsBothMeshAxes) {
  v1::JobSpec job;
  job.set_name("test");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(64);
  job.mutable_train()->set_steps(10);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  job.mutable_resources()->set_ranks_per_node(4);
  job.mutable_optimizer()->mutable_sgd()->set_lr(0.5);
  job.mutable_fsdp()->set_keep_gathered(true);
  job.mutable_fsdp()->mutable_outer()->set_size(2);
  job.mutable_fsdp()->mutable_outer()->set_strategy(v1::STRATEGY_OPTIM);
  const Plan plan = MakePlan(job, 0);
  ASSERT_TRUE(plan.accepted());
  const std::vector<std::string> table = ConfigTable(plan, v1::RankLaunch());
  EXPECT_THAT(table, Contains("strategy         optim_grads_params over 2 ranks, parameters stay gathered, "
                              "optim over 2 groups"));
  EXPECT_THAT(table, Contains("optimizer        sgd: lr 0.5, momentum 0, weight decay 0"));
}

TEST(RankLog, TableShowsWhichTargetsCount) {
  v1::JobSpec job;
  job.set_name("test");
  job.mutable_model()->set_preset("tiny");
  v1::TokenFile* const file = job.mutable_data()->add_tokens();
  file->set_path("/d/a.u8");
  file->set_type(v1::TOKEN_TYPE_U8);
  job.mutable_data()->set_sequence_length(64);
  job.mutable_train()->set_steps(10);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  EXPECT_THAT(
      ConfigTable(MakePlan(job, 0), v1::RankLaunch()),
      AllOf(Contains("data             /d/a.u8 x1"), Contains("documents        each sample is one")));
  file->set_mask("/d/a.mask");
  job.mutable_data()->set_document_end_token(7);
  EXPECT_THAT(ConfigTable(MakePlan(job, 0), v1::RankLaunch()),
              AllOf(Contains("data             /d/a.u8 x1 masked by /d/a.mask"),
                    Contains("documents        end with token 7")));
}

TEST(RankLog, TableShowsOffloadedState) {
  v1::JobSpec job;
  job.set_name("test");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(64);
  job.mutable_train()->set_steps(10);
  EXPECT_THAT(ConfigTable(MakePlan(job, 0), v1::RankLaunch()), Contains("offload          none"));
  job.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(true);
  job.mutable_fsdp()->mutable_offload()->set_activation_layers(1);
  EXPECT_THAT(ConfigTable(MakePlan(job, 0), v1::RankLaunch()),
              AllOf(Contains(HasSubstr("layers that are not offloaded")),
                    Contains("offload          optimizer state, activations of 1 layer")));
}

TEST(RankLog, StepLineHasFixedColumns) {
  v1::StepReport report;
  report.set_step(12);
  report.set_loss(3.14159);
  report.set_grad_norm(0.97);
  report.set_learning_rate(1e-3);
  report.set_step_seconds(0.25);
  report.set_tokens(2048);
  v1::OpTime* op = report.add_ops();
  op->set_seconds(0.1);
  report.set_exposed_seconds(0.01);
  report.mutable_memory()->set_peak_bytes(int64_t{3} << 29);
  EXPECT_EQ(StepLine(report, 200),
            "step    12/200  loss   3.1416  norm    0.970  lr 1.00e-03     0.250 s       8192 tok/s  overlap "
            " 90%  peak 1.50 GiB");
  report.clear_ops();
  EXPECT_THAT(StepLine(report, 200), HasSubstr("tok/s  overlap    -  peak"));
  report.set_step(100);
  report.set_loss(10.5);
  EXPECT_THAT(StepLine(report, 200), HasSubstr("step   100/200  loss  10.5000  norm"));
}

TEST(RankLog, StepLineShowsDataWait) {
  v1::StepReport report;
  report.set_data_wait_seconds(0.0009);
  EXPECT_THAT(StepLine(report, 2), Not(HasSubstr("waited")));
  report.set_data_wait_seconds(2.2);
  EXPECT_THAT(StepLine(report, 2), EndsWith("  waited 2 s for data"));
}

TEST(RankLog, StepLineShowsSkippedFp16Step) {
  v1::StepReport report;
  report.set_loss_scale(32768);
  EXPECT_THAT(StepLine(report, 2), EndsWith("scale 32768"));
  report.set_skipped(true);
  EXPECT_THAT(StepLine(report, 2), EndsWith("scale 32768  skipped: not finite"));
  report.clear_loss_scale();
  report.mutable_bad_step()->set_kind(v1::BAD_STEP_KIND_NONFINITE);
  report.mutable_bad_step()->set_first_sample(24);
  report.mutable_bad_step()->set_end_sample(36);
  EXPECT_THAT(StepLine(report, 2), EndsWith("  skipped: not finite, samples 24 to 35"));
  report.mutable_bad_step()->set_kind(v1::BAD_STEP_KIND_SPIKE);
  report.mutable_bad_step()->set_threshold(2.5);
  EXPECT_THAT(StepLine(report, 2), EndsWith("  skipped: norm above 2.500, samples 24 to 35"));
}

TEST(RankLog, EvaluationHasItsOwnLine) {
  v1::StepReport report;
  report.set_step(12);
  report.mutable_evaluation()->set_loss(3.25);
  report.mutable_evaluation()->set_tokens(65536);
  report.mutable_evaluation()->set_seconds(1.25);
  EXPECT_EQ(EvaluationLine(report, 200), "eval    12/200  loss   3.2500  over 65536 tokens  1.250 s");
}

TEST(RankLog, SavedLineShowsCostOrError) {
  v1::SavedCheckpoint saved;
  saved.set_step(200);
  saved.set_path("/runs/7/iter_0000200");
  saved.set_bytes(3 << 29);
  saved.set_seconds(4);
  saved.set_stall_seconds(0.25);
  EXPECT_EQ(SavedLine(saved, 1000),
            "save   200/1000  1.50 GiB in 4 s, training waited 250 ms for it  /runs/7/iter_0000200");
  saved.set_error("the disk is full");
  EXPECT_EQ(SavedLine(saved, 1000),
            "save   200/1000  no checkpoint at /runs/7/iter_0000200: the disk is full; training continues");
  EXPECT_EQ(SavedLine(saved, 200), "save   200/200  no checkpoint at /runs/7/iter_0000200: the disk is full");
}

TEST(RankLog, ExportIsNotShownAsCheckpoint) {
  v1::SavedCheckpoint exported;
  exported.set_format("hf");
  exported.set_step(1000);
  exported.set_path("/runs/7/hf");
  exported.set_bytes(3 << 29);
  exported.set_seconds(4);
  EXPECT_EQ(SavedLine(exported, 1000), "export hf  1.50 GiB in 4 s  /runs/7/hf");
  exported.set_error("the disk is full");
  EXPECT_EQ(SavedLine(exported, 1000),
            "export hf could not be written to /runs/7/hf: the disk is full; the checkpoint is complete");
}

TEST(RankLog, RestoredLinesNameSkippedCheckpoints) {
  v1::RestoredCheckpoint restored;
  restored.set_step(200);
  restored.set_path("/runs/7/iter_0000200");
  restored.set_seconds(2);
  restored.add_skipped_checkpoints("iter_0000300: damaged");
  EXPECT_THAT(RestoredLines(restored),
              ElementsAre("skipped checkpoint: iter_0000300: damaged",
                          "resuming after step 200 from /runs/7/iter_0000200, read in 2 s"));
  restored.clear_skipped_checkpoints();
  restored.set_step(0);
  EXPECT_THAT(RestoredLines(restored),
              ElementsAre("starting with only the parameters of /runs/7/iter_0000200, read in 2 s"));
}

TEST(RankLog, TraceLineShowsFileOrError) {
  v1::StepTraceResult traced;
  traced.set_step(20);
  traced.set_bytes(3 << 10);
  traced.set_path("/w/trace_step_20_rank_0.json");
  EXPECT_THAT(TracedLines(traced, 100),
              ElementsAre("trace   20/100  3.00 KiB  /w/trace_step_20_rank_0.json"));
  traced.mutable_memory_snapshot()->set_path("/w/memory_step_20_rank_0.pickle");
  traced.mutable_memory_snapshot()->set_bytes(2 << 20);
  traced.set_error("no space");
  EXPECT_THAT(TracedLines(traced, 100),
              ElementsAre("trace   20/100  not written: no space",
                          "memory   20/100  2.00 MiB  /w/memory_step_20_rank_0.pickle"));
  traced.clear_path();
  traced.clear_error();
  traced.mutable_memory_snapshot()->set_error("no space");
  EXPECT_THAT(TracedLines(traced, 100), ElementsAre("memory   20/100  not written: no space"))
      << "of a step that is not traced";
}

TEST(RankLog, SpikeLineNamesInstructionAndBaseline) {
  v1::StepReport report;
  report.set_step(12);
  report.mutable_memory()->set_peak_bytes(int64_t{6} << 30);
  v1::MemorySpike* const spike = report.mutable_memory()->mutable_spike();
  spike->set_instruction("Backward layer.3 mb 0");
  spike->set_median_bytes(int64_t{4} << 30);
  spike->set_plan_bytes(int64_t{5} << 30);
  EXPECT_EQ(
      SpikeLine(report, 200),
      "memory  12/200  peak 6.00 GiB in Backward layer.3 mb 0: 2.00 GiB (50%) above the median of earlier "
      "steps, 1.00 GiB (20%) above the plan");
  spike->clear_instruction();
  spike->set_plan_bytes(int64_t{8} << 30);
  EXPECT_EQ(
      SpikeLine(report, 200),
      "memory  12/200  peak 6.00 GiB in no instruction: 2.00 GiB (50%) above the median of earlier steps");
}

}  // namespace
}  // namespace fsdpd
