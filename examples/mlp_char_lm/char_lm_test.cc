#include "examples/mlp_char_lm/char_lm.h"

#include <absl/strings/str_replace.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>

#include "fsdp/fsdp.h"

namespace {

struct Outcome {
  std::vector<double> losses;
  fsdpd::Weights weights;
};

std::string TextFile() {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/text";
  std::ofstream text(path);
  for (int line = 0; line < 100; ++line) text << "the quick brown fox jumps over the lazy dog\n";
  return path;
}

Outcome Train(const std::string& ranks, const std::string& batch, const std::string& strategy) {
  const CharLm model(/*layers=*/2, /*width=*/24);
  const auto plan = fsdpd::PlanJson(
      absl::StrReplaceAll(
          R"({"name": "char-lm", "data": {"tokens": [{"path": "FILE", "type": "TOKEN_TYPE_U8"}], "sequence_length": 32},
              "train": {"steps": 12, "micro_batch": BATCH, "global_batch": 6}, "optimizer": {"adamw": {"lr": 0.01}},
              "fsdp": {"strategy": "STRATEGY_MODE"},
              "resources": {"device": "DEVICE_CPU", "ranks_per_node": RANKS}})",
          {{"FILE", TextFile()}, {"BATCH", batch}, {"RANKS", ranks}, {"MODE", strategy}}),
      model);
  EXPECT_TRUE(plan.ok()) << plan.status();
  Outcome run;
  fsdpd::TrainOptions options;
  options.model = &model;
  options.on_step = [&](const fsdpd::v1::StepReport& report) {
    run.losses.push_back(report.loss());
    return absl::OkStatus();
  };
  auto weights = fsdpd::TrainThreads(*plan, options);
  EXPECT_TRUE(weights.ok()) << weights.status();
  if (weights.ok()) run.weights = *std::move(weights);
  return run;
}

TEST(CharLm, ShardedTrainingMatchesUnsharded) {
  const Outcome unsharded = Train("1", "6", "NO_SHARD");
  const Outcome sharded = Train("2", "1", "OPTIM_GRADS_PARAMS");
  ASSERT_EQ(unsharded.losses.size(), 12u);
  EXPECT_LT(unsharded.losses.back(), 0.7 * unsharded.losses.front());
  for (size_t s = 0; s < unsharded.losses.size(); ++s) {
    EXPECT_NEAR(sharded.losses[s], unsharded.losses[s], 1e-3 * unsharded.losses[s]) << "step " << s + 1;
  }
  ASSERT_EQ(sharded.weights.size(), unsharded.weights.size());
}

TEST(CharLm, PluginExportsSymbol) {
  void* plugin = dlopen("examples/mlp_char_lm/char_lm.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(plugin, nullptr) << dlerror();
  EXPECT_NE(dlsym(plugin, "fsdpd_plugin"), nullptr);
}

}  // namespace
