// train.deterministic on CPU: two runs of a job are bit-identical. Ranks are threads, which arrive in any
// order.
#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};

struct Case {
  std::string name;
  TestMesh mesh;
  int world;
  int micro_batches;
  v1::DType compute = v1::DTYPE_FP32;
  bool experts = false;
  bool gpt2 = false;
};

v1::JobSpec JobOf(const Case& of) {
  v1::JobSpec job = TestJob();
  job.mutable_train()->set_deterministic(true);
  job.mutable_optimizer()->set_clip_norm(0.5);
  job.mutable_precision()->set_compute(of.compute);
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  if (of.experts) {
    llama->mutable_experts()->set_count(4);
    llama->mutable_experts()->set_per_token(2);
    llama->mutable_experts()->set_balance_loss(0.1);
  }
  if (of.gpt2) {
    const v1::Llama sizes = *llama;
    v1::Gpt2* gpt2 = job.mutable_model()->mutable_gpt2();
    gpt2->set_vocab_size(sizes.vocab_size());
    gpt2->set_hidden_size(sizes.hidden_size());
    gpt2->set_layers(sizes.layers());
    gpt2->set_heads(sizes.heads());
    gpt2->set_positions(job.data().sequence_length());
  }
  return Over(job, of.mesh, of.world, of.micro_batches);
}

class DeterministicJobs : public ::testing::TestWithParam<Case> {};

TEST_P(DeterministicJobs, RunsAreBitIdentical) {
  const v1::JobSpec job = JobOf(GetParam());
  const LocalJobResult once = Train(job);
  ExpectSame(once, Train(job), 0);
  LocalJobOptions ahead;
  ahead.run_ahead_on_cpu = true;
  ExpectSame(once, Train(job, ahead), 0);
}

// On CPU, sums are always in a fixed order.
TEST_P(DeterministicJobs, MatchesOtherJobsOnCpu) {
  v1::JobSpec job = JobOf(GetParam());
  const LocalJobResult with = Train(job);
  job.mutable_train()->set_deterministic(false);
  ExpectSame(Train(job), with, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DeterministicJobs,
    ::testing::Values(
        Case{"NoShard", {"no_shard", v1::STRATEGY_NO_SHARD}, 3, 1},
        Case{"Optim", {"optim", v1::STRATEGY_OPTIM}, 3, 2},
        Case{"OptimGrads", {"optim_grads", v1::STRATEGY_OPTIM_GRADS}, 4, 1}, Case{"Sharded", kParams, 3, 2},
        Case{"Bf16", kParams, 2, 2, v1::DTYPE_BF16},
        Case{"Replicas", {"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM}, 4, 1},
        Case{"Experts", kParams, 3, 2, v1::DTYPE_FP32, true},
        Case{"Gpt2", kParams, 3, 1, v1::DTYPE_FP32, false, true}),
    [](const auto& info) { return info.param.name; });

TEST(DeterministicJob, ResumeIsBitIdentical) {
  const TempDir dir;
  const Case sharded{"", kParams, 3, 2};
  v1::JobSpec saving = JobOf(sharded);
  saving.mutable_checkpoint()->set_dir(dir.path());
  saving.mutable_checkpoint()->set_every_steps(2);
  const LocalJobResult whole = Train(saving);
  v1::JobSpec rest = JobOf(sharded);
  rest.mutable_checkpoint()->set_load(dir.path() + "/iter_0000002");
  ExpectSameRest(whole, Train(rest), 0);
}

}  // namespace
}  // namespace fsdpd
