// Documents within samples, and targets excluded by a mask: a job on any mesh matches the job on one rank,
// and documents change the losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kRoundOff = 1e-5;
constexpr char kEnd = '.';

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kOptimGrads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

class JobDocuments : public ::testing::Test {
 protected:
  // Only letters count as targets.
  v1::JobSpec PackedJob() {
    const std::string text =
        "to be. or not to be. that is. the question. whether. tis nobler. in the mind to suffer.a.b..";
    std::ofstream(dir_.File("text"), std::ios::binary) << text;
    std::ofstream mask(dir_.File("mask"), std::ios::binary);
    for (const char each : text) mask.put(static_cast<char>(each >= 'a'));
    mask.close();
    v1::JobSpec job = TestJob();
    v1::Llama* llama = job.mutable_model()->mutable_llama();
    llama->set_vocab_size(256);
    llama->set_heads(4);
    llama->set_kv_heads(2);
    llama->set_head_size(6);
    job.mutable_optimizer()->set_clip_norm(0.5);
    v1::Data* data = job.mutable_data();
    data->clear_synthetic();
    data->set_sequence_length(24);
    data->set_document_end_token(kEnd);
    v1::TokenFile* file = data->add_tokens();
    file->set_path(dir_.File("text"));
    file->set_mask(dir_.File("mask"));
    file->set_type(v1::TOKEN_TYPE_U8);
    *data->add_validation() = *file;
    job.mutable_train()->mutable_evaluation()->set_every_steps(3);
    return job;
  }

  TempDir dir_;
};

void ExpectSameEvaluations(const LocalJobResult& expected, const LocalJobResult& actual) {
  int evaluations = 0;
  for (size_t s = 0; s < expected.reports[0].size(); ++s) {
    const v1::StepReport &one = expected.reports[0][s], &other = actual.reports[0][s];
    EXPECT_EQ(one.tokens(), other.tokens());
    EXPECT_EQ(one.evaluation().tokens(), other.evaluation().tokens());
    EXPECT_NEAR(one.evaluation().loss(), other.evaluation().loss(), kRoundOff * one.evaluation().loss());
    evaluations += one.has_evaluation();
  }
  EXPECT_EQ(evaluations, 2);
}

// Documents that do not fit into a sample are split.
v1::JobSpec OfWholeDocuments(v1::JobSpec job) {
  job.mutable_data()->set_sequence_length(16);
  job.mutable_data()->set_packing(v1::PACKING_DOCUMENTS);
  job.mutable_data()->set_too_long(v1::TOO_LONG_SPLIT);
  return job;
}

void ExpectSameOnEachMesh(const v1::JobSpec& on_one_rank) {
  const LocalJobResult one_rank = Train(on_one_rank);
  struct Case {
    TestMesh mesh;
    int world, micro_batches, tensor;
  };
  for (const Case& c :
       {Case{kNoShard, 2, 3, 1}, Case{kOptimGrads, 2, 1, 1}, Case{kParams, 2, 2, 1}, Case{kParams, 4, 1, 1},
        Case{kHfsdp, 4, 3, 1}, Case{kNoShard, 2, 1, 2}, Case{kParams, 4, 2, 2}, Case{kParams, 4, 1, 4}}) {
    SCOPED_TRACE(c.mesh.name + " of " + std::to_string(c.world) + " tensor " + std::to_string(c.tensor));
    v1::JobSpec job = Over(on_one_rank, c.mesh, c.world, c.micro_batches);
    job.mutable_parallel()->set_tensor(c.tensor);
    job.mutable_train()->set_micro_batch(job.train().micro_batch() * c.tensor);
    const LocalJobResult shared = Train(job);
    ExpectSame(one_rank, shared, kRoundOff);
    ExpectSameEvaluations(one_rank, shared);
  }
}

TEST_F(JobDocuments, MatchesOneRank) { ExpectSameOnEachMesh(PackedJob()); }
TEST_F(JobDocuments, WholeDocumentsMatchOneRank) { ExpectSameOnEachMesh(OfWholeDocuments(PackedJob())); }

TEST_F(JobDocuments, RecomputeIsBitIdentical) {
  for (const v1::JobSpec& made : {PackedJob(), OfWholeDocuments(PackedJob())}) {
    const LocalJobResult baseline = Train(made);
    for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
      v1::JobSpec job = made;
      job.mutable_fsdp()->set_recompute(recompute);
      ExpectSame(baseline, Train(job), 0);
    }
  }
}

TEST_F(JobDocuments, ResumesWithTheSameDocuments) {
  int run = 0;
  for (const v1::JobSpec& made : {PackedJob(), OfWholeDocuments(PackedJob())}) {
    const std::string checkpoints = dir_.File("checkpoints" + std::to_string(run++));
    const LocalJobResult whole = Train(made);
    v1::JobSpec saving = made;
    saving.mutable_checkpoint()->set_dir(checkpoints);
    saving.mutable_checkpoint()->set_every_steps(3);
    Train(saving);
    v1::JobSpec job = made;
    job.mutable_checkpoint()->set_load(checkpoints + "/iter_0000003");
    const LocalJobResult resumed = Train(job);
    ASSERT_EQ(resumed.reports[0].size(), 3u);
    for (size_t s = 0; s < 3; ++s) EXPECT_EQ(resumed.reports[0][s].loss(), whole.reports[0][s + 3].loss());
    EXPECT_EQ(resumed.weights, whole.weights);
  }
}

TEST_F(JobDocuments, WholeDocumentsChangeTheLossAndAreCounted) {
  v1::JobSpec stream = PackedJob();
  stream.mutable_data()->set_sequence_length(16);
  const LocalJobResult whole = Train(OfWholeDocuments(PackedJob()));
  EXPECT_GT(std::abs(Train(stream).reports[0][0].loss() - whole.reports[0][0].loss()), 1e-3);
  EXPECT_THAT(whole.reports[0][0].warnings(),
              ElementsAre(HasSubstr("data.tokens: "), HasSubstr("data.validation: ")));
  EXPECT_THAT(whole.reports[0][1].warnings(), IsEmpty());
  for (const v1::StepReport& report : whole.reports[0]) {
    EXPECT_GT(report.loss_tokens(), 0);
    EXPECT_LT(report.loss_tokens(), report.tokens());
  }
}

TEST_F(JobDocuments, ChangesTheFirstLoss) {
  const auto first = [](const v1::JobSpec& job) { return Train(job).reports[0][0].loss(); };
  const double packed = first(PackedJob()), seen = 10 * kRoundOff * packed;
  v1::JobSpec whole = PackedJob();
  whole.mutable_data()->clear_document_end_token();
  v1::JobSpec unmasked = PackedJob();
  unmasked.mutable_data()->mutable_tokens(0)->clear_mask();
  EXPECT_GT(std::abs(first(whole) - packed), seen);
  EXPECT_GT(std::abs(first(unmasked) - packed), seen);
}

TEST_F(JobDocuments, EvaluationAppliesTheMask) {
  const auto evaluation = [](const v1::JobSpec& job) { return Train(job).reports[0][2].evaluation(); };
  v1::JobSpec unmasked = PackedJob();
  unmasked.mutable_data()->mutable_validation(0)->clear_mask();
  const auto packed = evaluation(PackedJob()), all = evaluation(unmasked);
  EXPECT_LT(packed.tokens(), all.tokens());
  EXPECT_GT(std::abs(packed.loss() - all.loss()), 10 * kRoundOff * packed.loss());
}

TEST_F(JobDocuments, WarnsIfNoneEnds) {
  v1::JobSpec job = Over(PackedJob(), kParams, 2);
  for (const auto& reports : Train(job).reports) {
    for (const v1::StepReport& report : reports) EXPECT_THAT(report.warnings(), IsEmpty());
  }
  job.mutable_data()->set_document_end_token(7);
  for (const auto& reports : Train(job).reports) {
    EXPECT_THAT(reports[4].warnings(), IsEmpty());
    EXPECT_THAT(reports[5].warnings(), ElementsAre(HasSubstr("tokens read is 7 (data.document_end_token)")));
  }
}

TEST_F(JobDocuments, NoTargetsNoTraining) {
  v1::JobSpec job = PackedJob();
  std::ofstream(dir_.File("none"), std::ios::binary)
      << std::string(std::filesystem::file_size(dir_.File("mask")), '\0');
  job.mutable_data()->mutable_tokens(0)->set_mask(dir_.File("none"));
  job.mutable_optimizer()->mutable_adamw()->set_weight_decay(0);
  const LocalJobResult result = Train(job);
  EXPECT_EQ(result.reports[0][0].loss(), 0);
  EXPECT_EQ(result.reports[0][0].grad_norm(), 0);
  EXPECT_THAT(result.reports[0][0].warnings(), ElementsAre(HasSubstr("step 1 has no targets")));
  EXPECT_THAT(result.reports[0][5].warnings(), ElementsAre(HasSubstr("6 of the 6 steps")));
  v1::JobSpec still = job;
  still.mutable_train()->set_steps(1);
  EXPECT_EQ(result.weights, Train(still).weights);
}

}  // namespace
}  // namespace fsdpd
