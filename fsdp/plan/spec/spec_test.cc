#include "fsdp/plan/spec/spec.h"

#include <gtest/gtest.h>

#include <vector>

namespace fsdpd {
namespace {

std::vector<int64_t> StepsSaved(const Spec& spec) {
  std::vector<int64_t> saved;
  for (int64_t step = 1; step <= spec.steps; ++step) {
    if (spec.SavesAfter(step)) saved.push_back(step);
  }
  return saved;
}

TEST(Spec, SavesAfterEachIntervalAndAtTheEnd) {
  Spec spec;
  spec.steps = 10;
  EXPECT_FALSE(spec.checkpoint.saves());
  spec.checkpoint.every_steps = 4;
  spec.checkpoint.on_end = true;
  EXPECT_FALSE(spec.checkpoint.saves()) << "there is no directory";
  EXPECT_EQ(StepsSaved(spec), std::vector<int64_t>{});
  spec.checkpoint.dir = "/runs/1";
  EXPECT_TRUE(spec.checkpoint.saves());
  EXPECT_EQ(StepsSaved(spec), (std::vector<int64_t>{4, 8, 10}));
  spec.checkpoint.on_end = false;
  EXPECT_EQ(StepsSaved(spec), (std::vector<int64_t>{4, 8}));
  spec.checkpoint.every_steps = 0;
  EXPECT_FALSE(spec.checkpoint.saves());
  spec.checkpoint.every_minutes = 5;
  EXPECT_TRUE(spec.checkpoint.saves());
  EXPECT_EQ(StepsSaved(spec), std::vector<int64_t>{}) << "which those are is known when they come";
  spec.checkpoint.every_minutes = 0;
  spec.checkpoint.on_end = true;
  EXPECT_EQ(StepsSaved(spec), std::vector<int64_t>{10});
  spec.checkpoint.every_steps = 5;
  EXPECT_EQ(StepsSaved(spec), (std::vector<int64_t>{5, 10})) << "the last one once";
}

TEST(Spec, ConvertsCheckpointSettings) {
  v1::JobSpec job;
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(8);
  job.mutable_train()->set_steps(10);
  job.mutable_train()->set_micro_batch(1);
  job.mutable_train()->set_global_batch(1);
  job.mutable_precision()->set_compute(v1::DTYPE_FP32);
  job.mutable_precision()->set_main_grads(v1::DTYPE_FP32);
  job.mutable_precision()->set_grad_comm(v1::DTYPE_FP32);
  job.mutable_precision()->set_moments(v1::DTYPE_FP32);
  job.mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
  job.mutable_fsdp()->mutable_outer()->set_strategy(v1::STRATEGY_NO_SHARD);
  job.mutable_fsdp()->mutable_outer()->set_size(1);
  job.mutable_parallel()->set_context(1);
  job.mutable_parallel()->set_tensor(1);
  job.mutable_parallel()->set_expert(1);
  job.mutable_parallel()->set_pipeline(1);
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(1);
  job.mutable_optimizer()->mutable_sgd()->set_lr(1);
  EXPECT_EQ(ToSpec(job).checkpoint.keep_last, 3);
  EXPECT_EQ(ToSpec(job).checkpoint.load_optimizer, std::nullopt);
  EXPECT_EQ(ToSpec(job).checkpoint.export_format, "");
  v1::Checkpoint* checkpoint = job.mutable_checkpoint();
  checkpoint->set_dir("/runs/1");
  checkpoint->set_every_steps(2);
  checkpoint->set_every_minutes(30);
  checkpoint->set_on_end(true);
  checkpoint->set_keep_last(5);
  checkpoint->set_keep_every(4);
  checkpoint->set_load("/runs/0");
  checkpoint->set_load_optimizer(false);
  checkpoint->set_export_("hf");
  const CheckpointConfig made = ToSpec(job).checkpoint;
  EXPECT_EQ(made.dir, "/runs/1");
  EXPECT_EQ(made.every_steps, 2);
  EXPECT_EQ(made.every_minutes, 30);
  EXPECT_TRUE(made.on_end);
  EXPECT_EQ(made.keep_last, 5);
  EXPECT_EQ(made.keep_every, 4);
  EXPECT_EQ(made.load, "/runs/0");
  EXPECT_EQ(made.load_optimizer, false);
  EXPECT_EQ(made.export_format, "hf");
}

}  // namespace
}  // namespace fsdpd
