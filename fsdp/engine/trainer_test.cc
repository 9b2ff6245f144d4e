// Sharded equals unsharded: the same job over 1, 2 and 4 ranks, in every strategy, gives the same losses and
// the same weights. Ranks are threads; everything else is what rank processes run.
#include "fsdp/engine/trainer.h"

#include <absl/strings/str_format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "base/temp_dir.h"
#include "fsdp/comm/local_communicator.h"
#include "fsdp/engine/local_job.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

struct Job {
  int world = 1;
  std::string strategy = "STRATEGY_OPTIM_GRADS_PARAMS";
  int micro_batch = 4;
  double clip_norm = 0;
  std::string recompute = "RECOMPUTE_NONE";
  int steps = 10;
  double lr = 1e-2;
  int64_t global_batch = 8;
};

// Sizes that no shard count divides, so that cuts fall inside rows and padding is everywhere.
std::string JsonOf(const Job& job) {
  return absl::StrFormat(
      R"({"name": "test",
          "model": {"llama": {"vocab_size": 37, "hidden_size": 20, "intermediate_size": 36, "layers": 2, "heads": 2,
                              "kv_heads": 1}},
          "data": {"synthetic": {"vocab": 7}, "sequence_length": 8},
          "train": {"steps": %d, "micro_batch": %d, "global_batch": %d, "seed": 5},
          "optimizer": {"adamw": {"lr": %g}, "clip_norm": %g},
          "precision": {"compute": "DTYPE_FP32"},
          "fsdp": {"strategy": "%s", "recompute": "%s"},
          "resources": {"nodes": 1, "ranks_per_node": %d, "device": "DEVICE_CPU"}})",
      job.steps, job.micro_batch, job.global_batch, job.lr, job.clip_norm, job.strategy, job.recompute,
      job.world);
}

LocalJobResult Train(const Job& job) {
  const auto plan = PlanOfJson(JsonOf(job));
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto result = RunLocalJob(*plan);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

void ExpectSame(const LocalJobResult& a, const LocalJobResult& b, double relative) {
  ASSERT_EQ(a.reports[0].size(), b.reports[0].size());
  for (size_t s = 0; s < a.reports[0].size(); ++s) {
    const double loss = a.reports[0][s].loss();
    EXPECT_NEAR(b.reports[0][s].loss(), loss, relative * loss) << "step " << s + 1;
    EXPECT_NEAR(b.reports[0][s].grad_norm(), a.reports[0][s].grad_norm(), relative * 10) << "step " << s + 1;
  }
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.weights.size(); ++i) {
    difference += std::pow(a.weights[i] - b.weights[i], 2);
    size += std::pow(a.weights[i], 2);
  }
  EXPECT_LE(std::sqrt(difference), relative * 10 * std::sqrt(size));
}

class TrainerTest : public ::testing::TestWithParam<std::tuple<int, std::string, int, double>> {};

TEST_P(TrainerTest, ShardedEqualsUnsharded) {
  const auto& [world, strategy, micro_batches, clip_norm] = GetParam();
  Job alone;
  alone.strategy = "STRATEGY_NO_SHARD";
  alone.micro_batch = 8;
  alone.clip_norm = clip_norm;
  Job sharded = alone;
  sharded.world = world;
  sharded.strategy = strategy;
  sharded.micro_batch = 8 / world / micro_batches;
  const LocalJobResult expected = Train(alone);
  const LocalJobResult actual = Train(sharded);
  ExpectSame(expected, actual, 1e-5);
  EXPECT_LT(expected.reports[0].back().loss(), expected.reports[0].front().loss());  // It learns.
  if (clip_norm > 0) {
    EXPECT_GT(expected.reports[0].front().grad_norm(), clip_norm);  // Clipping did something.
  }
  for (int rank = 1; rank < world; ++rank) {
    for (size_t s = 0; s < actual.reports[0].size(); ++s) {
      EXPECT_EQ(actual.reports[rank][s].loss(), actual.reports[0][s].loss());
      EXPECT_EQ(actual.reports[rank][s].grad_norm(), actual.reports[0][s].grad_norm());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, TrainerTest,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values("STRATEGY_NO_SHARD",
                                                              "STRATEGY_OPTIM_GRADS_PARAMS"),
                                            ::testing::Values(1, 2), ::testing::Values(0.0, 0.5)));

TEST(Trainer, WorldThatDividesNothing) {
  Job alone;
  alone.strategy = "STRATEGY_NO_SHARD";
  alone.global_batch = 9;
  alone.micro_batch = 9;
  Job three = alone;
  three.strategy = "STRATEGY_OPTIM_GRADS_PARAMS";
  three.world = 3;
  three.micro_batch = 1;
  ExpectSame(Train(alone), Train(three), 1e-5);
}

TEST(Trainer, RecomputeGivesTheSameBits) {
  Job kept;
  kept.world = 2;
  kept.micro_batch = 2;
  Job recomputed = kept;
  recomputed.recompute = "RECOMPUTE_FULL";
  const LocalJobResult a = Train(kept);
  const LocalJobResult b = Train(recomputed);
  ExpectSame(a, b, 0);
  EXPECT_EQ(a.weights, b.weights);
}

TEST(Trainer, TheSameSeedGivesTheSameBits) {
  Job job;
  job.world = 2;
  const LocalJobResult a = Train(job);
  const LocalJobResult b = Train(job);
  ExpectSame(a, b, 0);
  EXPECT_EQ(a.weights, b.weights);
}

TEST(Trainer, ReportsEveryStep) {
  Job job;
  job.world = 2;
  job.steps = 3;
  const LocalJobResult result = Train(job);
  for (int rank : {0, 1}) {
    ASSERT_EQ(result.reports[rank].size(), 3u);
    for (int s = 0; s < 3; ++s) {
      const v1::StepReport& report = result.reports[rank][s];
      EXPECT_EQ(report.step(), s + 1);
      EXPECT_EQ(report.tokens(), 64);
      EXPECT_GT(report.step_seconds(), 0);
      EXPECT_GT(report.compute_seconds(), 0);
      EXPECT_LE(report.compute_seconds(), report.step_seconds() * 1.001);
      EXPECT_GT(report.memory().arena_bytes(), 0);
      ASSERT_EQ(report.ops_size(), 3);
      EXPECT_EQ(report.ops(0).op(), v1::COMM_OP_ALL_GATHER);
      EXPECT_EQ(report.ops(0).count(), 4 + 3);  // Four units forward, all but the head again for backward.
      EXPECT_EQ(report.ops(1).op(), v1::COMM_OP_REDUCE_SCATTER);
      EXPECT_EQ(report.ops(1).count(), 4);
      EXPECT_EQ(report.ops(2).op(), v1::COMM_OP_ALL_REDUCE);
      EXPECT_EQ(report.ops(2).count(), 1);
      for (const v1::OpTime& op : report.ops()) {
        EXPECT_GT(op.bytes(), 0);
        EXPECT_LE(op.exposed_seconds(), op.seconds() * 1.001);
      }
    }
  }
}

TEST(Trainer, ALossThatIsNotFiniteNamesTheStep) {
  Job job;
  job.lr = 1e30;
  const auto result = RunLocalJob(*PlanOfJson(JsonOf(job)));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kOutOfRange) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("step 2: not finite"));
}

TEST(Trainer, NamesATokenThatTheModelDoesNotKnow) {
  TempDir dir;
  std::ofstream(dir.File("tokens.bin")) << std::string(100, 'x');  // 120 is not below 37.
  Job job;
  auto plan = PlanOfJson(JsonOf(job));
  ASSERT_TRUE(plan.ok());
  plan->spec.data.tokens = {{dir.File("tokens.bin"), 1, TokenType::kU8}};
  EXPECT_THAT(std::string(RunLocalJob(*plan).status().message()),
              HasSubstr("step 1: " + dir.File("tokens.bin")));
}

// Two trainers over one local group, driven from the test.
class TwoRanks : public ::testing::Test {
 protected:
  TwoRanks() {
    Job job;
    job.world = 2;
    job.steps = 1'000'000;
    plan_ = *PlanOfJson(JsonOf(job));
    auto gather = MakeLocalGroup(2);
    auto reduce = MakeLocalGroup(2);
    for (int rank : {0, 1}) {
      TrainerOptions options;
      options.plan = &plan_;
      options.rank = rank;
      options.gather = std::move(gather[rank]);
      options.reduce = std::move(reduce[rank]);
      options.stop = &stop_[rank];
      auto trainer = Trainer::Make(std::move(options));
      EXPECT_TRUE(trainer.ok()) << trainer.status();
      trainers_.push_back(*std::move(trainer));
    }
  }

  // Runs both until they end; rank 0 does `at_third` after its third step.
  void Run(const std::function<absl::Status()>& at_third) {
    std::thread other(
        [&] { status_[1] = trainers_[1]->Run([](const v1::StepReport&) { return absl::OkStatus(); }); });
    status_[0] = trainers_[0]->Run(
        [&](const v1::StepReport& report) { return report.step() == 3 ? at_third() : absl::OkStatus(); });
    other.join();
  }

  Plan plan_;
  std::atomic<bool> stop_[2] = {{false}, {false}};
  std::vector<std::unique_ptr<Trainer>> trainers_;
  absl::Status status_[2];
};

TEST_F(TwoRanks, StopWhenAsked) {
  Run([&] {
    stop_[0] = stop_[1] = true;
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsCancelled(status_[0])) << status_[0];
  EXPECT_TRUE(absl::IsCancelled(status_[1])) << status_[1];
}

TEST_F(TwoRanks, ARankThatFailsTakesTheOtherWithIt) {
  Run([] { return absl::InternalError("disk full"); });
  EXPECT_THAT(status_[0].ToString(), HasSubstr("step 3: disk full"));
  EXPECT_TRUE(absl::IsUnavailable(status_[1])) << status_[1];
  EXPECT_THAT(status_[1].ToString(), HasSubstr("step 4: #"));  // Names the instruction that could not finish.
}

TEST_F(TwoRanks, AbortWakesARankWhosePeerIsStuck) {
  trainers_.pop_back();  // Never runs: its communicators leave.
  status_[0] = trainers_[0]->Run([](const v1::StepReport&) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsUnavailable(status_[0])) << status_[0];
}

}  // namespace
}  // namespace fsdpd
