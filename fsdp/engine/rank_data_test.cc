#include "fsdp/engine/rank_data.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/temp_dir.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/error_cause.h"

namespace fsdpd {
namespace {

absl::Status NeverInterrupted() { return absl::OkStatus(); }

// Trains on random tokens and evaluates on a file of three samples: two rounds of two.
Spec EvaluatedSpec(const std::string& path, int64_t steps, int64_t every_steps) {
  LlamaConfig model;
  model.vocab_size = 256;
  Spec spec;
  spec.model = model;
  spec.data.sequence_length = 4;
  spec.data.synthetic_vocab = 50;
  spec.data.validation = {{path, 1, TokenType::kU8}};
  spec.global_batch = 4;
  spec.micro_batch = 2;
  spec.mesh = Mesh::DataParallel(1, 1);
  spec.steps = steps;
  spec.evaluation.every_steps = every_steps;
  return spec;
}

int64_t FirstToken(const absl::StatusOr<StepBatches>& read) {
  EXPECT_TRUE(read.ok()) << read.status();
  return read->batches()[0].tokens.const_data_ptr<int64_t>()[0];
}

TEST(StepsOfEpochs, RoundsUp) {
  EXPECT_EQ(StepsOfEpochs(1, 100, 10), 10);
  EXPECT_EQ(StepsOfEpochs(1.1, 100, 10), 11);  // The product is 110.00000000000001.
  EXPECT_EQ(StepsOfEpochs(1, 101, 10), 11);
  EXPECT_EQ(StepsOfEpochs(0.5, 7, 64), 1);  // Fewer samples than a step has.
  EXPECT_EQ(StepsOfEpochs(1e-300, 7, 64), 1);
}

TEST(AgreeOnSteps, AllRanksUseTheNumberOfRankZero) {
  const TempDir dir;
  std::ofstream(dir.File("tokens.bin"), std::ios::binary) << std::string(100, 'a');
  Spec spec = EvaluatedSpec(dir.File("none"), 1, 0);
  spec.data.tokens = {{dir.File("tokens.bin"), 1, TokenType::kU8}};
  LocalStore store;
  ASSERT_TRUE(AgreeOnSteps(&store, 0, spec, 3, true).ok());
  std::ofstream(dir.File("tokens.bin"), std::ios::binary) << std::string(200, 'a');  // Another copy.
  EXPECT_EQ(*AgreeOnSteps(&store, 1, spec, 3, true), 15);  // 20 windows of 5 tokens, 4 per step.
  LocalStore failing;
  spec.data.tokens[0].path = dir.File("missing.bin");
  const absl::Status own = AgreeOnSteps(&failing, 0, spec, 3, false).status();
  EXPECT_TRUE(absl::IsNotFound(own)) << own;
  EXPECT_EQ(CauseOf(own)->kind(), v1::ErrorClass::KIND_DATA);
  EXPECT_TRUE(IsPeerLost(AgreeOnSteps(&failing, 1, spec, 3, false).status()));
  spec.data.tokens[0].path = dir.File("tokens.bin");
  LocalStore endless;
  const absl::Status many = AgreeOnSteps(&endless, 0, spec, 1e12, false).status();
  EXPECT_EQ(many.message().substr(0, 28), "train.epochs: too many steps") << many;
  EXPECT_TRUE(CauseOf(many)->permanent());
}

// From any step on, yields all remaining steps and all rounds of the remaining evaluations.
TEST(RankData, ReadsToTheEndOfTheRun) {
  const TempDir dir;
  std::ofstream(dir.File("validation.bin"), std::ios::binary) << std::string("0123456789abc");
  for (int64_t steps = 1; steps <= 7; ++steps) {
    for (int64_t every = 1; every <= 4; ++every) {
      const Spec spec = EvaluatedSpec(dir.File("validation.bin"), steps, every);
      for (int64_t done = 0; done <= steps; ++done) {
        RankDataOptions options;
        options.spec = &spec;
        options.origin = {done, done * spec.global_batch};
        const auto data = RankData::Open(options);
        ASSERT_TRUE(data.ok()) << data.status();
        EXPECT_EQ(data->rounds, 2);
        int64_t round = 0;
        for (int64_t step = done + 1; step <= steps; ++step) {
          Batch expected = MakeBatch(spec);
          ASSERT_TRUE(data->batches->Read(step, 0, &expected).ok());
          EXPECT_EQ(FirstToken(data->training->Next(step, NeverInterrupted)),
                    expected.tokens.const_data_ptr<int64_t>()[0]);
          if (step % every != 0 && step != steps) continue;
          EXPECT_EQ(FirstToken(data->evaluation->Next(++round, NeverInterrupted)), '0');
          EXPECT_EQ(FirstToken(data->evaluation->Next(++round, NeverInterrupted)), '8');
        }
      }
    }
  }
}

TEST(RankData, HasNoEvaluationUnlessConfigured) {
  Spec spec = EvaluatedSpec("", 3, 0);
  spec.data.validation.clear();
  RankDataOptions options;
  options.spec = &spec;
  const auto data = RankData::Open(options);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->evaluation, nullptr);
  EXPECT_EQ(data->rounds, 0);
}

}  // namespace
}  // namespace fsdpd
