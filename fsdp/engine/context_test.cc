// Context parallelism: a job with its sequences sharded over 2 or 4 ranks matches the job on one rank, in
// every strategy and mesh, up to rounding, since attention sums its parts in another order.
#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

constexpr double kRoundOff = 1e-5;

struct Case {
  TestMesh mesh;
  int world = 2;
  int context = 2;
  int micro_batches = 1;
};

v1::JobSpec LongJob() {
  v1::JobSpec job = TestJob();
  job.mutable_data()->set_sequence_length(24);
  job.mutable_optimizer()->set_clip_norm(0.5);
  return job;
}

// With fewer data-parallel groups, each reads more samples.
v1::JobSpec Cut(const v1::JobSpec& job, const Case& c) {
  v1::JobSpec cut = Over(job, c.mesh, c.world, c.micro_batches);
  cut.mutable_parallel()->set_context(c.context);
  cut.mutable_train()->set_micro_batch(job.train().global_batch() * c.context / c.world / c.micro_batches);
  return cut;
}

std::vector<Case> Cases() {
  const TestMesh no_shard{"no_shard", v1::STRATEGY_NO_SHARD};
  const TestMesh optim{"optim", v1::STRATEGY_OPTIM};
  const TestMesh grads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
  const TestMesh params{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
  const TestMesh hsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
  const TestMesh hfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};
  std::vector<Case> cases;
  for (const TestMesh& mesh : {no_shard, optim, grads, params}) {
    cases.push_back({mesh, 2, 2, 1});
    cases.push_back({mesh, 4, 4, 2});
    cases.push_back({mesh, 4, 2, 3});
  }
  for (const TestMesh& mesh : {hsdp, hfsdp}) {
    cases.push_back({mesh, 4, 2, 1});
    cases.push_back({mesh, 8, 2, 1});
    cases.push_back({mesh, 8, 4, 3});
  }
  return cases;
}

class Context : public ::testing::TestWithParam<Case> {};

TEST_P(Context, MatchesOneRank) {
  static const LocalJobResult* const one_rank = new LocalJobResult(Train(LongJob()));
  const LocalJobResult shared = Train(Cut(LongJob(), GetParam()));
  ExpectSame(*one_rank, shared, kRoundOff);
  EXPECT_LT(shared.reports[0].back().loss(), shared.reports[0].front().loss());  // Training works.
}

INSTANTIATE_TEST_SUITE_P(Meshes, Context, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           const Case& c = info.param;
                           return c.mesh.name + "_world" + std::to_string(c.world) + "_context" +
                                  std::to_string(c.context) + "_mb" + std::to_string(c.micro_batches);
                         });

const Case kShared{{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS}, 4, 2, 2};

TEST(Context, RecomputeIsBitIdentical) {
  const LocalJobResult baseline = Train(Cut(LongJob(), kShared));
  for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
    v1::JobSpec job = Cut(LongJob(), kShared);
    job.mutable_fsdp()->set_recompute(recompute);
    ExpectSame(baseline, Train(job), 0);
  }
}

TEST(Context, SupportsQkNorm) {
  v1::JobSpec job = LongJob();
  job.mutable_model()->mutable_llama()->set_qk_norm(true);
  ExpectSame(Train(job), Train(Cut(job, kShared)), kRoundOff);
}

TEST(Context, SupportsMultiHeadAttention) {
  v1::JobSpec job = LongJob();
  job.mutable_model()->mutable_llama()->set_kv_heads(2);
  ExpectSame(Train(job), Train(Cut(job, kShared)), kRoundOff);
}

TEST(Context, NarrowTypesAreClose) {
  v1::JobSpec job = LongJob();
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  ExpectSame(Train(job), Train(Cut(job, kShared)), 2e-2);
}

TEST(Context, ResumesWithAnotherDegree) {
  const TempDir dir;
  const LocalJobResult whole = Train(LongJob());
  v1::JobSpec saving = Cut(LongJob(), kShared);
  saving.mutable_checkpoint()->set_dir(dir.path());
  saving.mutable_checkpoint()->set_every_steps(3);
  Train(saving);
  for (const Case& c : {Case{kShared.mesh, 4, 4, 1}, Case{kShared.mesh, 2, 1, 3}}) {
    v1::JobSpec job = Cut(LongJob(), c);
    job.mutable_checkpoint()->set_load(dir.File("iter_0000003"));
    const LocalJobResult resumed = Train(job);
    ASSERT_EQ(resumed.reports[0].size(), 3u);
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, std::to_string(c.context) + " to a sample");
    ExpectSameRest(whole, resumed, kRoundOff);
  }
}

// Ignored targets, short samples and evaluation: each rank's part is counted once.
TEST(Context, CountsTargetsLikeOneRank) {
  const TempDir dir;
  const std::string path = dir.path() + "/text";
  std::ofstream(path)
      << "to be, or not to be, that is the question: whether tis nobler in the mind to suffer";
  v1::JobSpec job = LongJob();
  job.mutable_model()->mutable_llama()->set_vocab_size(256);
  job.mutable_data()->clear_synthetic();
  job.mutable_data()->set_ignore_index(' ');
  v1::TokenFile* file = job.mutable_data()->add_tokens();
  file->set_path(path);
  file->set_type(v1::TOKEN_TYPE_U8);
  *job.mutable_data()->add_validation() = *file;
  job.mutable_train()->mutable_evaluation()->set_every_steps(3);
  const LocalJobResult one_rank = Train(job), shared = Train(Cut(job, kShared));
  ExpectSame(one_rank, shared, kRoundOff);
  EXPECT_EQ(ExpectSameEvaluations(one_rank, shared, kRoundOff), 2);
}

}  // namespace
}  // namespace fsdpd
