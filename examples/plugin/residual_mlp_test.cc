// Test of the example plug-in in a job: it is described, planned, loaded by every rank and trained.
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "fsdp/fsdp.h"
#include "fsdp/model/plugin.h"

namespace {

using fsdpd::Weights;

constexpr char kArgs[] = R"({"layers": 2})";

std::string Path() { return std::filesystem::absolute("examples/plugin/residual_mlp.so").string(); }

// The spec in the form that fsdpctl sends.
std::string Job(int ranks, const std::string& strategy) {
  std::string plugin = *fsdpd::DescribePlugin(Path(), kArgs);
  plugin.replace(plugin.find('{'), 1, R"({"path": ")" + Path() + R"(", )");
  return absl::StrReplaceAll(
      R"({"name": "plugin", "model": {"plugin": PLUGIN}, "data": {"synthetic": {"vocab": 7}, "sequence_length": 16},
          "train": {"steps": 8, "global_batch": 4, "micro_batch": BATCH}, "optimizer": {"adamw": {"lr": 0.01}},
          "fsdp": {"strategy": "STRATEGY_MODE"}, "resources": {"device": "DEVICE_CPU", "ranks_per_node": RANKS}})",
      {{"PLUGIN", plugin},
       {"MODE", strategy},
       {"BATCH", std::to_string(4 / ranks)},
       {"RANKS", std::to_string(ranks)}});
}

absl::StatusOr<Weights> Train(const std::string& job, std::vector<double>* losses) {
  const auto plan = fsdpd::PlanJson(job);
  if (!plan.ok()) return plan.status();
  fsdpd::TrainOptions options;
  options.on_step = [&](const fsdpd::v1::StepReport& report) {
    losses->push_back(report.loss());
    return absl::OkStatus();
  };
  return fsdpd::TrainThreads(*plan, options);
}

TEST(ResidualMlp, ShardedTrainingMatchesUnsharded) {
  std::vector<double> losses, sharded_losses;
  const auto unsharded = Train(Job(1, "NO_SHARD"), &losses);
  const auto sharded = Train(Job(2, "OPTIM_GRADS_PARAMS"), &sharded_losses);
  ASSERT_TRUE(unsharded.ok()) << unsharded.status();
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_LT(losses.back(), losses.front() - 0.5);
  for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(sharded_losses[s], losses[s], 1e-4) << s;
  for (size_t i = 0; i < unsharded->size(); ++i) ASSERT_NEAR((*sharded)[i], (*unsharded)[i], 1e-3) << i;
}

TEST(ResidualMlp, RejectsPluginThatDiffersFromSpec) {
  std::vector<double> losses;
  const std::string job = absl::StrReplaceAll(Job(2, "NO_SHARD"), {{R"(\"layers\": 2)", R"(\"layers\": 3)"}});
  EXPECT_THAT(Train(job, &losses).status().ToString(),
              ::testing::HasSubstr("describes another model than the job's spec"));
}

}  // namespace
