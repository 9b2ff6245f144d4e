#include "fsdp/data/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

Spec SyntheticSpec(int64_t world, int64_t micro_batch) {
  Spec spec;
  spec.model.vocab_size = 50;
  spec.data.synthetic_vocab = 50;
  spec.data.sequence_length = 6;
  spec.global_batch = 8;
  spec.micro_batch = micro_batch;
  spec.world = world;
  return spec;
}

// All inputs and targets of one step, by sample.
std::vector<std::vector<int64_t>> GlobalBatch(const Spec& spec, int64_t step) {
  std::vector<std::vector<int64_t>> samples;
  for (int rank = 0; rank < spec.world; ++rank) {
    const auto batches = Batches::Open(spec, rank);
    EXPECT_TRUE(batches.ok()) << batches.status();
    for (int64_t m = 0; m < spec.micro_batches_per_step(); ++m) {
      const auto batch = batches->Read(step, m);
      EXPECT_TRUE(batch.ok()) << batch.status();
      for (int64_t i = 0; i < spec.micro_batch; ++i) {
        const int64_t* tokens = batch->tokens.const_data_ptr<int64_t>() + i * spec.data.sequence_length;
        const int64_t* targets = batch->targets.const_data_ptr<int64_t>() + i * spec.data.sequence_length;
        samples.emplace_back(tokens, tokens + spec.data.sequence_length);
        samples.back().insert(samples.back().end(), targets, targets + spec.data.sequence_length);
      }
    }
  }
  return samples;
}

TEST(Batches, GiveEveryWorldTheSameGlobalBatch) {
  for (int64_t step : {1, 2, 1000}) {
    const auto alone = GlobalBatch(SyntheticSpec(1, 8), step);
    ASSERT_EQ(alone.size(), 8u);
    EXPECT_EQ(GlobalBatch(SyntheticSpec(1, 2), step), alone);
    EXPECT_EQ(GlobalBatch(SyntheticSpec(2, 1), step), alone);
    EXPECT_EQ(GlobalBatch(SyntheticSpec(4, 2), step), alone);
    EXPECT_EQ(GlobalBatch(SyntheticSpec(8, 1), step), alone);
  }
}

TEST(Batches, TargetsAreTheNextTokens) {
  for (const auto& sample : GlobalBatch(SyntheticSpec(2, 2), 3)) {
    for (int k = 0; k < 5; ++k) EXPECT_EQ(sample[6 + k], sample[k + 1]);
  }
}

TEST(Batches, StepsDiffer) {
  EXPECT_NE(GlobalBatch(SyntheticSpec(1, 8), 1), GlobalBatch(SyntheticSpec(1, 8), 2));
}

TEST(Batches, TakeFromEachFileByItsWeight) {
  TempDir dir;
  Spec spec = SyntheticSpec(1, 8);
  for (int i = 0; i < 2; ++i) {
    std::ofstream(dir.File(std::to_string(i)), std::ios::binary) << std::string(700, static_cast<char>(i));
    spec.data.tokens.push_back({dir.File(std::to_string(i)), i == 0 ? 3.0 : 1.0, TokenType::kU8});
  }
  int from_second = 0;
  for (int64_t step = 1; step <= 512; ++step) {  // One block of 4096 samples: shares are exact.
    for (const auto& sample : GlobalBatch(spec, step)) from_second += sample[0];
  }
  EXPECT_EQ(from_second, 1024);
}

TEST(Batches, NameTheFileThatIsMissing) {
  Spec spec = SyntheticSpec(1, 8);
  spec.data.tokens.push_back({"/nonexistent/corpus.bin", 1, TokenType::kU8});
  EXPECT_THAT(Batches::Open(spec, 0).status().ToString(), ::testing::HasSubstr("/nonexistent/corpus.bin"));
}

TEST(SharePlaces, AreProportionalAndNeverZero) {
  EXPECT_EQ(SharePlaces({3, 1}, 4096), (std::vector<int64_t>{3072, 1024}));
  EXPECT_EQ(SharePlaces({1, 1, 1}, 10), (std::vector<int64_t>{4, 3, 3}));
  EXPECT_EQ(SharePlaces({1e9, 1}, 4096), (std::vector<int64_t>{4095, 1}));
}

}  // namespace
}  // namespace fsdpd
