#include "fsdp/fsdp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "base/temp_dir.h"
#include "fsdp/model/testing/plain_ends.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

// A model with tied embeddings, so that a user model covers what built-in models have.
class Chain : public UserModel {
 public:
  ModelDescription Describe() const override {
    ModelDescription model;
    model.vocab_size = kPlainVocab;
    model.units = {{"embedding", {{"weight", {kPlainVocab, kPlainWidth}}}, "", 0, 0, 0, kPlainWidth},
                   {"mix",
                    {{"w", {kPlainWidth, kPlainWidth}}, {"b", {kPlainWidth}, false}},
                    "",
                    2 * kPlainWidth,
                    0,
                    0,
                    kPlainWidth},
                   {"head", {{"bias", {kPlainVocab}, false}}, "embedding", kPlainWidth + kPlainVocab}};
    return model;
  }

  std::vector<std::unique_ptr<Unit>> MakeUnits(const ModelFacts& facts,
                                               at::Device /*device*/) const override {
    const UnitForward forwards[] = {
        PlainEmbedding,
        [](const UnitInput& in, const std::vector<at::Tensor>& p) {
          return UnitOutput{in.hidden + at::tanh(at::linear(in.hidden, p[0], p[1])), {}};
        },
        [](const UnitInput& in, const std::vector<at::Tensor>& p) {
          return PlainLoss(in, at::linear(in.hidden, p[1], p[0]));
        }};
    std::vector<std::unique_ptr<Unit>> units;
    for (size_t u = 0; u < facts.units.size(); ++u) {
      std::vector<ParamInit> inits = DefaultInits(facts.units[u]);
      units.push_back(std::make_unique<AutogradUnit>(facts.units[u], std::move(inits), forwards[u]));
    }
    return units;
  }
};

std::string Job(int ranks, const std::string& strategy = "OPTIM_GRADS_PARAMS", const std::string& more = "") {
  return R"({"name": "mine", "data": {"synthetic": {"vocab": 3}, "sequence_length": 8},
             "train": {"steps": 5, "global_batch": 4, "micro_batch": )" +
         std::to_string(4 / ranks) + R"(}, "optimizer": {"adamw": {"lr": 0.01}},
             "fsdp": {"strategy": "STRATEGY_)" +
         strategy + R"("}, "resources": {"device": "DEVICE_CPU", "ranks_per_node": )" +
         std::to_string(ranks) + "}" + more + "}";
}

TEST(Library, TrainsUserModel) {
  const Chain model;
  const auto plan = PlanJson(Job(2), model);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(PlanText(*plan), HasSubstr("119 parameters over 2 ranks"));
  TrainOptions options;
  options.model = &model;
  std::vector<double> losses;
  options.on_step = [&](const v1::StepReport& report) {
    losses.push_back(report.loss());
    return absl::OkStatus();
  };
  auto weights = TrainThreads(*plan, options);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(losses.size(), 5u);
  EXPECT_LT(losses.back(), losses.front() - 0.01);
  const auto named = ByName(*plan, &*weights);
  ASSERT_EQ(named.size(), 4u);
  EXPECT_EQ(named[1].first, "mix.w");
  EXPECT_EQ(named[1].second.sizes(), at::IntArrayRef({kPlainWidth, kPlainWidth}));
  EXPECT_EQ(named[3].second.data_ptr<float>(), weights->data() + weights->size() - kPlainVocab);
}

TEST(Library, ShardedEqualsUnsharded) {
  const Chain model;
  TrainOptions options;
  options.model = &model;
  const auto alone = PlanJson(Job(1, "NO_SHARD"), model);
  const auto sharded = PlanJson(Job(2), model);
  ASSERT_TRUE(alone.ok() && sharded.ok());
  const auto expected = TrainThreads(*alone, options);
  const auto actual = TrainThreads(*sharded, options);
  ASSERT_TRUE(expected.ok() && actual.ok());
  ASSERT_EQ(expected->size(), actual->size());
  for (size_t i = 0; i < expected->size(); ++i) EXPECT_NEAR((*actual)[i], (*expected)[i], 1e-5) << i;
}

std::vector<absl::StatusOr<Weights>> TrainRanks(const std::vector<const Plan*>& plans,
                                                const TrainOptions& options, const std::string& directory) {
  std::vector<absl::StatusOr<Weights>> results(plans.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < plans.size(); ++r) {
    ranks.emplace_back([&, r] {
      RankOptions rank;
      rank.rank = static_cast<int>(r);
      rank.rendezvous = directory;
      rank.rendezvous_timeout = absl::Seconds(60);
      results[r] = TrainRank(*plans[r], rank, options);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return results;
}

// Over TCP and a rendezvous directory, as with processes.
TEST(Library, RanksInProcessesEqualThreads) {
  TempDir dir;
  const Chain model;
  TrainOptions options;
  options.model = &model;
  for (const char* strategy : {"OPTIM_GRADS_PARAMS", "NO_SHARD"}) {
    const auto plan = PlanJson(Job(2, strategy), model);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto ranks = TrainRanks({&*plan, &*plan}, options, dir.File(strategy));
    ASSERT_TRUE(ranks[0].ok()) << ranks[0].status();
    ASSERT_TRUE(ranks[1].ok()) << ranks[1].status();
    EXPECT_EQ(*ranks[0], *ranks[1]);
    EXPECT_EQ(*ranks[0], *TrainThreads(*plan, options));
  }
}

TEST(Library, RejectsDirectoryOfEarlierLaunch) {
  TempDir dir;
  const auto plan = PlanJson(Job(1, "NO_SHARD", R"(, "model": {"gpt2": {"vocab_size": 8, "hidden_size": 8,
      "layers": 1, "heads": 1, "positions": 8}})"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(TrainRanks({&*plan}, {}, dir.path())[0].ok());
  const auto again = TrainRanks({&*plan}, {}, dir.path());
  EXPECT_EQ(again[0].status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(again[0].status().ToString(), HasSubstr("use a new one for each launch"));
}

TEST(Library, RejectsDifferentPlans) {
  TempDir dir;
  const Chain model;
  TrainOptions options;
  options.model = &model;
  const auto one = PlanJson(Job(2), model);
  const auto other = PlanJson(Job(2, "OPTIM"), model);
  for (const auto& rank : TrainRanks({&*one, &*other}, options, dir.path())) {
    EXPECT_EQ(rank.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(rank.status().ToString(), HasSubstr("spec.strategy"));
  }
}

TEST(Library, CallbackErrorEndsJob) {
  const Chain model;
  const auto plan = PlanJson(Job(2), model);
  TrainOptions options;
  options.model = &model;
  options.on_step = [](const v1::StepReport& report) {
    return report.step() < 2 ? absl::OkStatus() : absl::DataLossError("disk full");
  };
  EXPECT_EQ(TrainThreads(*plan, options).status(), absl::DataLossError("step 2: disk full"));
}

TEST(Library, RestartedRunResumesFromCheckpoint) {
  const TempDir dir;
  const Chain model;
  const std::string saving = R"(, "checkpoint": {"dir": ")" + dir.File("runs") + R"(", "every_steps": 2})";
  const auto plan = PlanJson(Job(2, "OPTIM_GRADS_PARAMS", saving), model);
  ASSERT_TRUE(plan.ok()) << plan.status();
  TrainOptions options;
  options.model = &model;
  const auto whole = TrainThreads(*PlanJson(Job(2), model), options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  options.run = "mine-1";
  std::vector<int64_t> saved, steps;
  options.on_saved = [&](const v1::SavedCheckpoint& each) { saved.push_back(each.step()); };
  options.on_step = [&](const v1::StepReport& report) {
    return report.step() == 3 ? absl::InternalError("as a crash") : absl::OkStatus();
  };
  EXPECT_FALSE(TrainThreads(*plan, options).ok());
  options.on_step = [&](const v1::StepReport& report) {
    steps.push_back(report.step());
    return absl::OkStatus();
  };
  const auto resumed = TrainThreads(*plan, options);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(saved, (std::vector<int64_t>{2, 4, 5}));
  EXPECT_EQ(*resumed, *whole);
}

TEST(Library, StopFlagEndsJob) {
  const Chain model;
  const auto plan = PlanJson(Job(2), model);
  std::atomic<bool> stop{false};
  TrainOptions options;
  options.model = &model;
  options.stop = &stop;
  options.on_step = [&](const v1::StepReport& report) {
    stop = report.step() == 3;
    return absl::OkStatus();
  };
  EXPECT_EQ(TrainThreads(*plan, options).status().code(), absl::StatusCode::kCancelled);
}

TEST(Library, ReportsViolationsOfSpec) {
  EXPECT_THAT(PlanJson("{").status().ToString(), HasSubstr("job spec"));
  EXPECT_THAT(PlanJson(R"({"name": "a", "modle": {}})").status().ToString(), HasSubstr("modle"));
  EXPECT_THAT(PlanJson(Job(2)).status().ToString(), HasSubstr("model: no model is set"));
  const Chain model;
  EXPECT_THAT(PlanJson(Job(2, "NO_SHARD", R"(, "model": {"preset": "tiny"})"), model).status().ToString(),
              HasSubstr("leave it out"));
  const auto plan = PlanJson(Job(2), model);
  EXPECT_THAT(TrainThreads(*plan).status().ToString(), HasSubstr("TrainOptions.model"));
}

TEST(Library, ReadsRankFromEnvironment) {
  const Chain model;
  const auto plan = PlanJson(Job(2), model);
  setenv("RANK", "1", 1);
  unsetenv("LOCAL_RANK");
  EXPECT_THAT(RankOptionsOfEnvironment(*plan).status().ToString(), HasSubstr("LOCAL_RANK: not set"));
  setenv("LOCAL_RANK", "x", 1);
  EXPECT_THAT(RankOptionsOfEnvironment(*plan).status().ToString(),
              HasSubstr("LOCAL_RANK: invalid value (got 'x'"));
  setenv("LOCAL_RANK", "1", 1);
  setenv("WORLD_SIZE", "3", 1);
  EXPECT_THAT(RankOptionsOfEnvironment(*plan).status().ToString(), HasSubstr("WORLD_SIZE: got 3"));
  setenv("WORLD_SIZE", "2", 1);
  const auto options = RankOptionsOfEnvironment(*plan);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rank, 1);
  EXPECT_EQ(options->device_index, 1);
}

}  // namespace
}  // namespace fsdpd
