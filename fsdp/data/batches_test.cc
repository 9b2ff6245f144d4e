#include "fsdp/data/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"
#include "base/temp_dir.h"
#include "fsdp/model/unit/unit.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Rows = std::vector<std::vector<int64_t>>;

constexpr int64_t kSequence = 6;

Spec BaseSpec(int64_t world, int64_t micro_batch) {
  LlamaConfig model;
  model.vocab_size = 256;
  Spec spec;
  spec.model = model;
  spec.data.sequence_length = kSequence;
  spec.global_batch = 8;
  spec.micro_batch = micro_batch;
  spec.mesh = Mesh::DataParallel(1, world);
  return spec;
}

Spec SyntheticSpec(int64_t world, int64_t micro_batch) {
  Spec spec = BaseSpec(world, micro_batch);
  spec.data.synthetic_vocab = 50;
  return spec;
}

template <typename From, typename... Where>
absl::StatusOr<Batch> Read(const Spec& spec, const From& from, Where... where) {
  Batch batch = MakeBatch(spec);
  FSDPD_RETURN_IF_ERROR(from.Read(where..., &batch));
  return batch;
}

// Appends the inputs and targets of each row to `rows`.
void AddRows(const absl::StatusOr<Batch>& batch, Rows* rows) {
  ASSERT_TRUE(batch.ok()) << batch.status();
  const int64_t sequence = batch->tokens.size(1);
  int64_t counted = 0;
  for (int64_t i = 0; i < batch->tokens.size(0); ++i) {
    const int64_t* tokens = batch->tokens.const_data_ptr<int64_t>() + i * sequence;
    const int64_t* targets = batch->targets.const_data_ptr<int64_t>() + i * sequence;
    rows->emplace_back(tokens, tokens + sequence);
    rows->back().insert(rows->back().end(), targets, targets + sequence);
    counted += sequence - std::count(targets, targets + sequence, kIgnoredTarget);
  }
  EXPECT_EQ(batch->counted, counted);
}

// All inputs and targets of one step, by sample.
Rows GlobalBatch(const Spec& spec, int64_t step, const DataOrigin& origin = {}) {
  Rows rows;
  for (int rank = 0; rank < spec.mesh.world(); ++rank) {
    const auto batches = Batches::Open(spec, rank, origin);
    EXPECT_TRUE(batches.ok()) << batches.status();
    for (int64_t m = 0; m < spec.micro_batches_per_step(); ++m) AddRows(Read(spec, *batches, step, m), &rows);
  }
  return rows;
}

class FileBatches : public ::testing::Test {
 protected:
  // A u8 file that repeats the ids 0 .. ids-1, starting at `first`.
  TokenSource Write(const std::string& name, int64_t tokens, int first = 0, int ids = 1, double weight = 1) {
    std::ofstream out(dir_.File(name), std::ios::binary);
    for (int64_t i = 0; i < tokens; ++i) out.put(static_cast<char>(first + i % ids));
    return TokenSource{dir_.File(name), weight, TokenType::kU8};
  }

  TempDir dir_;
};

using EvaluationTest = FileBatches;

TEST(Batches, GlobalBatchIsEqualForAllWorlds) {
  for (int64_t step : {1, 2, 1000}) {
    const auto alone = GlobalBatch(SyntheticSpec(1, 8), step);
    ASSERT_EQ(alone.size(), 8u);
    EXPECT_EQ(GlobalBatch(SyntheticSpec(1, 2), step), alone);
    EXPECT_EQ(GlobalBatch(SyntheticSpec(2, 1), step), alone);
    EXPECT_EQ(GlobalBatch(SyntheticSpec(4, 2), step), alone);
    EXPECT_EQ(GlobalBatch(SyntheticSpec(8, 1), step), alone);
  }
}

TEST(Batches, TargetsAreNextTokens) {
  for (const auto& sample : GlobalBatch(SyntheticSpec(2, 2), 3)) {
    for (int k = 0; k < 5; ++k) EXPECT_EQ(sample[6 + k], sample[k + 1]);
  }
}

// Skips samples 10 to 20 of batches of 8: from the second step on all indices shift by eleven.
TEST(Batches, SkipSamplesInOrder) {
  Rows whole;
  for (int64_t step = 1; step <= 6; ++step) {
    for (auto& row : GlobalBatch(SyntheticSpec(1, 8), step)) whole.push_back(row);
  }
  Rows left(whole.begin(), whole.begin() + 10);
  left.insert(left.end(), whole.begin() + 21, whole.end());
  DataOrigin origin;
  origin.skipped_samples = {{10, 21}};
  for (const int64_t world : {1, 2, 4}) {
    for (int64_t step = 1; step <= 4; ++step) {
      const Rows expected(left.begin() + (step - 1) * 8, left.begin() + step * 8);
      EXPECT_EQ(GlobalBatch(SyntheticSpec(world, 2), step, origin), expected) << step;
    }
  }
  const auto batches = Batches::Open(SyntheticSpec(1, 8), 0, origin);
  EXPECT_EQ(batches->SamplesOf(1), (SampleRange{0, 8}));
  EXPECT_EQ(batches->SamplesOf(2), (SampleRange{8, 27}));
  // A run that continues after the range does not need to know it; one that continues before or within it
  // does.
  EXPECT_EQ(GlobalBatch(SyntheticSpec(2, 2), 3, {2, 27, {}}), GlobalBatch(SyntheticSpec(1, 8), 3, origin));
  EXPECT_EQ(GlobalBatch(SyntheticSpec(2, 2), 2, {1, 8, {{10, 21}}}),
            GlobalBatch(SyntheticSpec(1, 8), 2, origin));
  EXPECT_EQ(GlobalBatch(SyntheticSpec(1, 8), 5, {4, 15, {{10, 21}}}),
            GlobalBatch(SyntheticSpec(1, 8), 5, {4, 21}));
}

TEST(Batches, StepsDiffer) {
  EXPECT_NE(GlobalBatch(SyntheticSpec(1, 8), 1), GlobalBatch(SyntheticSpec(1, 8), 2));
}

TEST_F(FileBatches, SampleFilesByWeight) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("large", 70000, 0, 1, 3.0), Write("small", 7, 1, 1, 1.0),
                      Write("two", 999, 2, 1, 4.0)};
  std::map<int64_t, int> from;
  for (int64_t step = 1; step <= 512; ++step) {  // One block of 4096 samples, in which proportions are exact.
    for (const auto& sample : GlobalBatch(spec, step)) ++from[sample[0]];
  }
  EXPECT_EQ(from, (std::map<int64_t, int>{{0, 1536}, {1, 512}, {2, 2048}}));
}

TEST_F(FileBatches, ResumeAtAnyStep) {
  Spec spec = BaseSpec(2, 2);
  spec.data.tokens = {Write("a", 400, 0, 97, 3.0), Write("b", 100, 100, 89, 1.0)};
  const auto straight = Batches::Open(spec, 1);
  ASSERT_TRUE(straight.ok());
  for (int64_t step = 1; step <= 60; ++step) {  // 480 samples: several epochs of both files.
    Rows expected;
    Rows resumed;
    for (int64_t m = 0; m < 2; ++m) AddRows(Read(spec, *straight, step, m), &expected);
    const auto fresh = Batches::Open(spec, 1);
    for (int64_t m = 0; m < 2; ++m) AddRows(Read(spec, *fresh, step, m), &resumed);
    EXPECT_EQ(resumed, expected) << step;
  }
}

TEST_F(FileBatches, ResumeWithAnotherBatchSize) {
  Spec before = BaseSpec(2, 2);
  before.data.tokens = {Write("a", 400, 0, 97)};
  Spec after = before;
  after.global_batch = 4;
  Rows expected, resumed;  // Samples 24 to 31: step 4 of eight, or steps 4 and 5 of four each.
  for (int rank = 0; rank < 2; ++rank) {
    const auto batches = Batches::Open(before, rank);
    for (int64_t m = 0; m < 2; ++m) AddRows(Read(before, *batches, 4, m), &expected);
  }
  for (int64_t step = 4; step <= 5; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto batches = Batches::Open(after, rank, {3, 24});
      AddRows(Read(after, *batches, step, 0), &resumed);
    }
  }
  EXPECT_EQ(resumed, expected);
}

// Regression test: samples were drawn from all epochs of a block.
TEST_F(FileBatches, EpochUsesEachWindowOnceInItsOwnOrder) {
  Spec spec = BaseSpec(2, 1);
  spec.data.tokens = {Write("a", 224, 0, 224)};  // 32 windows of 7 tokens: four steps of 8 samples.
  std::set<Rows> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    Rows samples;
    for (int64_t step = 1; step <= 4; ++step) {
      for (const auto& sample : GlobalBatch(spec, epoch * 4 + step)) samples.push_back(sample);
    }
    std::vector<int64_t> ids;
    for (const auto& sample : samples) {
      ids.insert(ids.end(), sample.begin(), sample.begin() + kSequence);
      ids.push_back(sample.back());
    }
    std::sort(ids.begin(), ids.end());
    std::vector<int64_t> all(224);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(ids, all) << epoch;
    orders.insert(samples);
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST_F(FileBatches, FileOrderIsIndependentOfOtherFiles) {
  Spec alone = BaseSpec(1, 8);
  alone.data.tokens = {Write("a", 140, 0, 140)};
  Spec mixed = alone;
  mixed.data.tokens.push_back(Write("b", 50, 200, 50, 2.5));
  Rows expected;
  Rows from_first;
  for (int64_t step = 1; step <= 512; ++step) {
    for (const auto& sample : GlobalBatch(alone, step)) expected.push_back(sample);
    for (const auto& sample : GlobalBatch(mixed, step)) {
      if (sample[0] < 200) from_first.push_back(sample);
    }
  }
  ASSERT_EQ(from_first.size(), 1170u);  // 4096 / 3.5.
  expected.resize(from_first.size());
  EXPECT_EQ(from_first, expected);
}

TEST_F(FileBatches, IgnoredTokenIsNotATarget) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("a", 700, 0, 3)};  // 0 1 2 0 1 2 ...
  spec.data.ignore_index = 2;
  const auto batches = Batches::Open(spec, 0);
  const auto batch = Read(spec, *batches, 1, 0);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->counted, 8 * 4);  // Four of six targets per sample count.
  Rows rows;
  AddRows(batch, &rows);
  for (const auto& row : rows) {
    for (int k = 0; k < 5; ++k) EXPECT_EQ(row[6 + k], row[k + 1] == 2 ? kIgnoredTarget : row[k + 1]);
  }
}

struct Row {
  std::vector<int64_t> tokens, targets, positions;
};

std::vector<Row> RowsOf(const Batch& batch) {
  std::vector<Row> rows;
  const int64_t sequence = batch.tokens.size(1);
  const auto part = [&](const at::Tensor& of, int64_t row) {
    const int64_t* const begin = of.const_data_ptr<int64_t>() + row * sequence;
    return std::vector<int64_t>(begin, begin + sequence);
  };
  for (int64_t row = 0; row < batch.tokens.size(0); ++row)
    rows.push_back({part(batch.tokens, row), part(batch.targets, row), part(batch.positions, row)});
  return rows;
}

// Compares the tokens whose position is 0, and the bounds, with `starts`.
void ExpectDocuments(const Batch& batch, const std::vector<int64_t>& starts) {
  EXPECT_EQ(batch.documents.starts, starts);
  const int32_t* const bounds = batch.documents.bounds.const_data_ptr<int32_t>();
  const std::vector<int64_t> got(bounds, bounds + starts.size() + 1);
  std::vector<int64_t> expected = starts;
  expected.push_back(batch.tokens.numel());
  EXPECT_EQ(got, expected);
}

TEST_F(FileBatches, EndTokenEndsDocument) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("a", 7 * 11 + 5, 5, 11)};  // Repeats 5 to 15, ends with 9.
  spec.data.document_end_token = 9;
  const auto batches = Batches::Open(spec, 0);
  ASSERT_TRUE(batches.ok()) << batches.status();
  int64_t ends = 0;
  for (int64_t step = 1; step <= 20; ++step) {
    const auto batch = Read(spec, *batches, step, 0);
    ASSERT_TRUE(batch.ok()) << batch.status();
    std::vector<int64_t> starts;
    int64_t counted = 0;
    const int64_t before = ends;
    for (const Row& row : RowsOf(*batch)) {
      int64_t position = -1;
      for (int64_t t = 0; t < kSequence; ++t) {
        position = t > 0 && row.tokens[t - 1] == 9 ? 0 : position + 1;
        EXPECT_EQ(row.positions[t], position);
        if (position == 0) starts.push_back(counted + t);
        const int64_t next = row.tokens[t] == 15 ? 5 : row.tokens[t] + 1;
        EXPECT_EQ(row.targets[t], row.tokens[t] == 9 ? kIgnoredTarget : next);
        ends += row.tokens[t] == 9;
      }
      counted += kSequence;
    }
    ExpectDocuments(*batch, starts);
    EXPECT_EQ(batch->document_ends, ends - before);
    const int64_t* const targets = batch->targets.const_data_ptr<int64_t>();
    EXPECT_EQ(batch->counted, counted - std::count(targets, targets + counted, kIgnoredTarget));
  }
  EXPECT_GT(ends, 50);
}

TEST_F(FileBatches, FileEndEndsDocument) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("a", 20, 30, 20)};  // 30 to 49; the ring's seam is 49, 30.
  spec.data.document_end_token = 200;
  const auto batches = Batches::Open(spec, 0);
  int64_t seams = 0;
  for (int64_t step = 1; step <= 20; ++step) {
    const auto batch = Read(spec, *batches, step, 0);
    ASSERT_TRUE(batch.ok()) << batch.status();
    for (const Row& row : RowsOf(*batch)) {
      for (int64_t t = 0; t < kSequence; ++t) {
        const bool begins = t == 0 || row.tokens[t] == 30;
        EXPECT_EQ(row.targets[t], row.tokens[t] == 49 ? kIgnoredTarget : row.tokens[t] + 1);
        EXPECT_EQ(row.positions[t], begins ? 0 : row.positions[t - 1] + 1);
        seams += t > 0 && begins;
      }
    }
  }
  EXPECT_GT(seams, 3);
  spec.data.document_end_token.reset();  // Without an end token, a file is a ring.
  const auto whole = Batches::Open(spec, 0);
  const auto batch = Read(spec, *whole, 1, 0);
  EXPECT_EQ(batch->counted, 8 * kSequence);
  EXPECT_FALSE(batch->positions.defined());
}

TEST_F(FileBatches, PackedDocumentsAreWholeAndPadded) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("a", 7 * 3, 5, 3)};  // Seven documents 5, 6, 7. A sample has two.
  spec.data.document_end_token = 7;
  spec.data.packs_documents = true;
  const auto batches = Batches::Open(spec, 0);
  ASSERT_TRUE(batches.ok()) << batches.status();
  EXPECT_EQ(batches->samples_per_epoch(), 4);
  EXPECT_THAT(batches->Warnings(), ::testing::IsEmpty());
  const std::vector<std::string> traits = *batches->Traits();
  ASSERT_EQ(traits.size(), 2u);
  EXPECT_THAT(traits[1], ::testing::AllOf(::testing::HasSubstr("data.tokens[0].packing samples of "),
                                          ::testing::HasSubstr("a = 7 documents in 4 samples, hash ")));
  Write("a", 7 * 3 + 1, 5, 3);  // Another document of one token, which no sample uses.
  const std::vector<std::string> more = *Batches::Open(spec, 0)->Traits();
  EXPECT_THAT(more[1], ::testing::HasSubstr("a = 8 documents in 4 samples, hash "));
  Write("a", 7 * 3, 5, 3);
  const auto batch = Read(spec, *batches, 1, 0);
  ASSERT_TRUE(batch.ok()) << batch.status();
  for (const Row& row : RowsOf(*batch)) {
    int64_t t = 0;
    for (; t < kSequence && row.tokens[t] != 0; ++t) {
      EXPECT_EQ(row.tokens[t], 5 + t % 3);
      EXPECT_EQ(row.positions[t], t % 3);
      EXPECT_EQ(row.targets[t], t % 3 == 2 ? kIgnoredTarget : row.tokens[t] + 1);
    }
    for (int64_t begin = t; t < kSequence; ++t) {
      EXPECT_EQ(row.tokens[t], 0);
      EXPECT_EQ(row.positions[t], t - begin);
      EXPECT_EQ(row.targets[t], kIgnoredTarget);
    }
  }
  spec.data.sequence_length = 1;
  EXPECT_THAT(Batches::Open(spec, 0)->Warnings(),
              ::testing::ElementsAre(::testing::HasSubstr(
                  "data.tokens: 7 of 7 documents are longer than 2 tokens (sequence_length + 1) and are "
                  "truncated (data.too_long), all in ")));
  spec.data.tokens.push_back(Write("b", 9, 5, 3));
  EXPECT_THAT(Batches::Open(spec, 0)->Warnings(),
              ::testing::ElementsAre(::testing::AllOf(::testing::HasSubstr("data.tokens: 10 of 10 documents"),
                                                      ::testing::HasSubstr(", 7 of them in "))));
}

TEST_F(FileBatches, PackedDocumentsAreIndependentOfWorldAndRestart) {
  Spec alone = BaseSpec(1, 8);
  alone.data.tokens = {Write("a", 400, 0, 5, 3.0), Write("b", 100, 3, 7, 1.0)};
  alone.data.document_end_token = 4;
  alone.data.packs_documents = true;
  const auto whole = Batches::Open(alone, 0);
  const int64_t samples = whole->samples_per_epoch();
  for (int64_t step = 1; step < 4 * samples / 8; ++step) {
    const auto expected = Read(alone, *whole, step, 0);
    const std::vector<Row> rows = RowsOf(*expected);
    for (const int world : {2, 4, 8}) {
      Spec shared = BaseSpec(world, 8 / world);
      shared.data = alone.data;
      for (int rank = 0; rank < world; ++rank) {
        const auto part = Batches::Open(shared, rank, {step - 1, 8 * (step - 1)});
        const std::vector<Row> own = RowsOf(*Read(shared, *part, step, 0));
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_EQ(own[i].tokens, rows[rank * own.size() + i].tokens);
          EXPECT_EQ(own[i].targets, rows[rank * own.size() + i].targets);
          EXPECT_EQ(own[i].positions, rows[rank * own.size() + i].positions);
        }
      }
    }
  }
}

TEST_F(FileBatches, DocumentsAreIndependentOfWorldAndRestart) {
  Spec alone = BaseSpec(1, 8);
  alone.data.tokens = {Write("a", 400, 0, 5, 3.0), Write("b", 100, 3, 7, 1.0)};
  alone.data.document_end_token = 4;
  Spec shared = alone;
  shared.micro_batch = 2;
  shared.mesh = Mesh::DataParallel(1, 2);
  for (int64_t step = 1; step <= 12; ++step) {
    std::vector<Row> one = RowsOf(*Read(alone, *Batches::Open(alone, 0), step, 0)), two;
    for (int rank = 0; rank < 2; ++rank) {
      const auto fresh = Batches::Open(shared, rank, {step - 1, (step - 1) * 8});
      for (int64_t m = 0; m < 2; ++m) {
        for (Row& row : RowsOf(*Read(shared, *fresh, step, m))) two.push_back(std::move(row));
      }
    }
    ASSERT_EQ(one.size(), two.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i].tokens, two[i].tokens);
      EXPECT_EQ(one[i].targets, two[i].targets);
      EXPECT_EQ(one[i].positions, two[i].positions);
    }
  }
}

TEST_F(FileBatches, MaskedTargetsDoNotCount) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("a", 210, 0, 210)};
  std::ofstream mask(dir_.File("mask"), std::ios::binary);
  for (int i = 0; i < 210; ++i) mask.put(static_cast<char>(i % 3 == 1));
  mask.close();
  spec.data.tokens[0].mask = dir_.File("mask");
  const auto batches = Batches::Open(spec, 0);
  ASSERT_TRUE(batches.ok()) << batches.status();
  for (int64_t step = 1; step <= 10; ++step) {
    const auto batch = Read(spec, *batches, step, 0);
    Rows rows;
    AddRows(batch, &rows);
    for (const auto& row : rows) {
      for (int k = 0; k < kSequence; ++k) {
        const int64_t next = (row[k] + 1) % 210;
        EXPECT_EQ(row[kSequence + k], next % 3 == 1 ? next : kIgnoredTarget);
      }
    }
  }
}

TEST_F(FileBatches, NameMissingOrShortMask) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("a", 100), Write("b", 50)};
  spec.data.tokens[1].mask = "/nonexistent/b.mask";
  EXPECT_THAT(Batches::Open(spec, 0).status().ToString(),
              HasSubstr("data.tokens[1].mask: /nonexistent/b.mask: open: No such file"));
  spec.data.tokens[1].mask = Write("mask", 49).path;
  EXPECT_THAT(Batches::Open(spec, 0).status().ToString(),
              AllOf(HasSubstr("data.tokens[1].mask: "), HasSubstr("wrong mask size (got 49 bytes")));
}

TEST_F(FileBatches, NameMissingFile) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("there", 100), {"/nonexistent/corpus.bin", 1, TokenType::kU8}};
  EXPECT_THAT(Batches::Open(spec, 0).status().ToString(),
              HasSubstr("data.tokens[1].path: /nonexistent/corpus.bin: open: No such file"));
}

TEST_F(FileBatches, TraitsNameFilesByField) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens = {Write("a", 100), Write("b", 50)};
  const auto batches = Batches::Open(spec, 0);
  ASSERT_TRUE(batches.ok());
  EXPECT_THAT(*batches->Traits(),
              ElementsAre(AllOf(HasSubstr("data.tokens[0].path "), HasSubstr("a = 100 bytes, ")),
                          AllOf(HasSubstr("data.tokens[1].path "), HasSubstr("b = 50 bytes, "))));
  EXPECT_THAT(*Batches::Open(SyntheticSpec(1, 8), 0)->Traits(), ElementsAre());
  spec.data.tokens[0].mask = Write("mask", 100).path;
  EXPECT_THAT(*Batches::Open(spec, 0)->Traits(),
              ElementsAre(HasSubstr("data.tokens[0].path "),
                          AllOf(HasSubstr("data.tokens[0].mask "), HasSubstr("mask = 100 bytes, ")),
                          HasSubstr("data.tokens[1].path ")));
}

Spec EvaluationSpec(int64_t world, int64_t micro_batch, std::vector<TokenSource> files) {
  Spec spec = BaseSpec(world, micro_batch);
  spec.data.sequence_length = 4;
  spec.data.validation = std::move(files);
  spec.evaluation.every_steps = 1;
  return spec;
}

// All rows of one evaluation, by round and rank.
Rows Evaluate(const Spec& spec) {
  Rows rows;
  std::vector<EvaluationBatches> ranks;
  for (int rank = 0; rank < spec.mesh.world(); ++rank) {
    auto batches = EvaluationBatches::Open(spec, rank);
    EXPECT_TRUE(batches.ok()) << batches.status();
    ranks.push_back(std::move(*batches));
    EXPECT_EQ(ranks.back().rounds(), ranks.front().rounds());
  }
  for (int64_t round = 0; round < ranks.front().rounds(); ++round) {
    for (const EvaluationBatches& rank : ranks) AddRows(Read(spec, rank, round), &rows);
  }
  return rows;
}

constexpr int64_t kX = kIgnoredTarget;

const Rows kElevenTokens = {
    {0, 1, 2, 3, 1, 2, 3, 4}, {4, 5, 6, 7, 5, 6, 7, 8}, {8, 9, 10, 0, 9, 10, kX, kX}};  // The tail is padded.

TEST_F(EvaluationTest, EachTokenIsATargetOnce) {
  EXPECT_EQ(Evaluate(EvaluationSpec(1, 1, {Write("a", 11, 0, 11)})), kElevenTokens);
}

TEST_F(EvaluationTest, FullLastSampleIsNotSplit) {
  EXPECT_EQ(Evaluate(EvaluationSpec(1, 1, {Write("a", 9, 0, 9)})),
            (Rows{kElevenTokens[0], kElevenTokens[1]}));
  const Rows one_more = Evaluate(EvaluationSpec(1, 1, {Write("a", 10, 0, 10)}));
  ASSERT_EQ(one_more.size(), 3u);
  EXPECT_EQ(one_more[2], (std::vector<int64_t>{8, 9, 0, 0, 9, kX, kX, kX}));
}

TEST_F(EvaluationTest, FilesAreSeparateAndInOrder) {
  const Spec spec =
      EvaluationSpec(1, 1, {Write("a", 11, 0, 11), Write("b", 2, 50, 2), Write("c", 5, 100, 5)});
  Rows expected = kElevenTokens;
  expected.push_back({50, 51, 0, 0, 51, kX, kX, kX});
  expected.push_back({100, 101, 102, 103, 101, 102, 103, 104});
  EXPECT_EQ(Evaluate(spec), expected);
}

TEST_F(EvaluationTest, SamplesAreEqualForAllWorlds) {
  for (int64_t world : {1, 2, 3, 4, 8}) {
    for (int64_t micro_batch : {1, 2, 5}) {
      const Rows rows = Evaluate(EvaluationSpec(world, micro_batch, {Write("a", 11, 0, 11)}));
      ASSERT_EQ(rows.size() % (world * micro_batch), 0u);
      ASSERT_LT(rows.size(), 3u + world * micro_batch);
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(rows[i], i < 3 ? kElevenTokens[i] : (std::vector<int64_t>{0, 0, 0, 0, kX, kX, kX, kX}))
            << i;
      }
    }
  }
}

TEST_F(EvaluationTest, SpecLimitsSamples) {
  Spec spec = EvaluationSpec(1, 1, {Write("a", 11, 0, 11)});
  spec.evaluation.samples = 2;
  EXPECT_EQ(Evaluate(spec), (Rows{kElevenTokens[0], kElevenTokens[1]}));
  spec.evaluation.samples = 100;
  EXPECT_EQ(Evaluate(spec), kElevenTokens);
  spec.evaluation.samples = 1;
  spec.mesh = Mesh::DataParallel(1, 2);
  EXPECT_EQ(Evaluate(spec)[1], (std::vector<int64_t>{0, 0, 0, 0, kX, kX, kX, kX}));
}

TEST_F(EvaluationTest, IgnoredTokensDoNotCount) {
  Spec spec = EvaluationSpec(1, 1, {Write("a", 5, 0, 5)});
  spec.data.ignore_index = 3;
  EXPECT_EQ(Evaluate(spec), (Rows{{0, 1, 2, 3, 1, 2, kX, 4}}));
}

TEST_F(EvaluationTest, SupportsDocumentsAndMasks) {
  TokenSource file = Write("a", 11, 0, 11);
  std::ofstream(dir_.File("mask"), std::ios::binary) << std::string("\1\1\1\1\1\1\0\1\1\1\1", 11);
  file.mask = dir_.File("mask");
  Spec spec = EvaluationSpec(1, 2, {file});
  spec.data.document_end_token = 1;
  EXPECT_EQ(Evaluate(spec), (Rows{{0, 1, 2, 3, 1, kX, 3, 4},
                                  {4, 5, 6, 7, 5, kX, 7, 8},
                                  {8, 9, 10, 0, 9, 10, kX, kX},
                                  {0, 0, 0, 0, kX, kX, kX, kX}}));
  const auto batches = EvaluationBatches::Open(spec, 0);
  const auto first = Read(spec, *batches, 0), last = Read(spec, *batches, 1);
  ExpectDocuments(*first, {0, 2, 4});
  ExpectDocuments(*last, {0, 3, 4});  // Padding is a document.
  EXPECT_EQ(RowsOf(*first)[0].positions, (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(RowsOf(*last)[1].positions, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST_F(EvaluationTest, TraitsNameFilesByField) {
  const auto batches = EvaluationBatches::Open(EvaluationSpec(1, 1, {Write("a", 11)}), 0);
  ASSERT_TRUE(batches.ok());
  EXPECT_THAT(*batches->Traits(),
              ElementsAre(AllOf(HasSubstr("data.validation[0].path "), HasSubstr("a = 11 bytes, "))));
}

TEST_F(EvaluationTest, FileWithoutTargetsIsRejected) {
  const Spec spec = EvaluationSpec(1, 1, {Write("a", 11), Write("short", 1)});
  EXPECT_THAT(EvaluationBatches::Open(spec, 0).status().ToString(),
              AllOf(HasSubstr("data.validation[1].path: "), HasSubstr("got 1 tokens")));
}

TEST_F(EvaluationTest, TokenOutsideVocabularyIsRejected) {
  LlamaConfig model;
  model.vocab_size = 8;
  Spec spec = EvaluationSpec(1, 1, {Write("a", 11, 0, 11)});
  spec.model = model;
  const auto batches = EvaluationBatches::Open(spec, 0);
  EXPECT_TRUE(Read(spec, *batches, 0).ok());
  EXPECT_THAT(Read(spec, *batches, 1).status().ToString(),
              HasSubstr("a: token 8 at byte 8 is not below vocab_size 8"));
}

// A mask for each file doubles the number of open files.
TEST(Batches, CountsFilesAndMasks) {
  Spec spec = BaseSpec(1, 8);
  spec.data.tokens.assign(513, {"/nowhere/tokens"});
  EXPECT_THAT(Batches::Open(spec, 0).status().ToString(), HasSubstr("/nowhere/tokens"));
  for (TokenSource& source : spec.data.tokens) source.mask = "/nowhere/mask";
  EXPECT_THAT(Batches::Open(spec, 0).status().ToString(),
              HasSubstr("data.tokens names 513 files and 513 masks; at most 1024"));
}

TEST(SharePlaces, IsProportionalAndNeverZero) {
  EXPECT_EQ(SharePlaces({3, 1}, 4096), (std::vector<int64_t>{3072, 1024}));
  EXPECT_EQ(SharePlaces({1, 1, 1}, 10), (std::vector<int64_t>{4, 3, 3}));
  EXPECT_EQ(SharePlaces({1e9, 1}, 4096), (std::vector<int64_t>{4095, 1}));
  EXPECT_EQ(SharePlaces({1, 1e-9, 1, 1e-9}, 4), (std::vector<int64_t>{1, 1, 1, 1}));
}

// Regression test: the rounding remainder went to the largest source, here 96 places instead of 4.
TEST(SharePlaces, EqualWeightsDifferByAtMostOne) {
  const std::vector<int64_t> places = SharePlaces(std::vector<double>(1000, 1), 4096);
  EXPECT_EQ(std::accumulate(places.begin(), places.end(), int64_t{0}), 4096);
  for (int64_t source_places : places) EXPECT_TRUE(source_places == 4 || source_places == 5) << source_places;
}

}  // namespace
}  // namespace fsdpd
