#include "client/spec/named_checkpoint.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::Job JobWith(const std::vector<int64_t>& steps) {
  v1::Job job;
  job.set_id("a-k3x9q2");
  job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  for (const int64_t step : steps) {
    v1::SavedCheckpoint* saved = job.add_checkpoints();
    saved->set_step(step);
    saved->set_path("/runs/7/iter_" + std::to_string(step));
  }
  return job;
}

TEST(CheckpointChoice, ParsesJobAndOptionalStep) {
  EXPECT_EQ(ParseCheckpointChoice("a-k3x9q2")->job, "a-k3x9q2");
  EXPECT_FALSE(ParseCheckpointChoice("a-k3x9q2")->step.has_value());
  EXPECT_EQ(ParseCheckpointChoice("a-k3x9q2@200")->job, "a-k3x9q2");
  EXPECT_EQ(ParseCheckpointChoice("a-k3x9q2@200")->step, 200);
  for (const char* wrong : {"", "@200", "a@", "a@0", "a@-1", "a@newest", "a@1.5"})
    EXPECT_FALSE(ParseCheckpointChoice(wrong).ok()) << wrong;
}

TEST(CheckpointChoice, ResolvesNewestOrGivenStep) {
  const v1::Job job = JobWith({100, 200, 300});
  EXPECT_EQ(ResolveCheckpoint({"a-k3x9q2", {}}, job)->path(), "/runs/7/iter_300");
  EXPECT_EQ(ResolveCheckpoint({"a-k3x9q2", 200}, job)->path(), "/runs/7/iter_200");
}

TEST(CheckpointChoice, SkipsRemovedCheckpoints) {
  v1::Job job = JobWith({5, 10, 15, 20});
  job.mutable_resolved()->mutable_checkpoint()->set_keep_last(2);
  job.mutable_resolved()->mutable_checkpoint()->set_keep_every(10);
  EXPECT_EQ(
      ResolveCheckpoint({"a-k3x9q2", 5}, job).status(),
      absl::NotFoundError("a-k3x9q2 has no checkpoint of step 5 any more (checkpoint.keep_last); available: "
                          "10, 15, 20"));
  EXPECT_EQ(ResolveCheckpoint({"a-k3x9q2", 10}, job)->path(), "/runs/7/iter_10");
}

TEST(CheckpointChoice, ReportsAvailableSteps) {
  EXPECT_EQ(ResolveCheckpoint({"a-k3x9q2", 150}, JobWith({100, 200})).status(),
            absl::NotFoundError("a-k3x9q2 has no checkpoint of step 150; available: 100, 200"));
  v1::Job job = JobWith({});
  EXPECT_EQ(ResolveCheckpoint({"a-k3x9q2", {}}, job).status(),
            absl::NotFoundError("a-k3x9q2 has not committed a checkpoint"));
  job.mutable_spec()->clear_checkpoint();
  EXPECT_EQ(ResolveCheckpoint({"a-k3x9q2", {}}, job).status(),
            absl::NotFoundError("a-k3x9q2 does not write checkpoints: its spec has no checkpoint.dir"));
}

}  // namespace
}  // namespace fsdpd
