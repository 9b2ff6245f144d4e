// Offloaded optimizer state: a job with state in host memory is bit-identical. On CPU the device's memory is
// host memory, too; the test distinguishes where state is between steps, and when.
#include <gtest/gtest.h>

#include <functional>

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
  std::function<void(v1::JobSpec*)> change = [](v1::JobSpec*) {};
};

v1::JobSpec JobOf(const Case& of, bool offload) {
  v1::JobSpec job = TestJob();
  job.mutable_optimizer()->set_clip_norm(0.5);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(offload);
  of.change(&job);
  return Over(job, of.mesh, of.world, of.micro_batches);
}

void InBf16(v1::JobSpec* job) {
  job->mutable_precision()->set_compute(v1::DTYPE_BF16);
  job->mutable_precision()->set_moments(v1::DTYPE_BF16);
}

// Sizes divisible by 16.
void InFp8(v1::JobSpec* job) {
  v1::Llama* llama = job->mutable_model()->mutable_llama();
  llama->set_hidden_size(64);
  llama->set_intermediate_size(96);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  job->mutable_precision()->set_compute(v1::DTYPE_FP8);
}

void WithFp8Moments(v1::JobSpec* job) {
  InBf16(job);
  job->mutable_precision()->set_moments(v1::DTYPE_FP8);
}

// The loss scale is too high at first: skipped steps leave all state unchanged.
void InFp16(v1::JobSpec* job) {
  job->mutable_precision()->set_compute(v1::DTYPE_FP16);
  job->mutable_precision()->mutable_loss_scale()->set_initial(1e9);
}

void BySgd(v1::JobSpec* job) {
  job->mutable_optimizer()->clear_adamw();
  job->mutable_optimizer()->mutable_sgd()->set_lr(1e-2);
  job->mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
}

// The trainable part includes experts, whose routing biases move without an optimizer.
void PartlyFrozen(v1::JobSpec* job) {
  job->mutable_train()->add_frozen("*norm*");
  v1::Llama::Experts* experts = job->mutable_model()->mutable_llama()->mutable_experts();
  experts->set_count(4);
  experts->set_per_token(2);
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  experts->set_selection_bias(true);
  experts->set_bias_update_rate(0.001);
}

void InStages(v1::JobSpec* job) {
  job->mutable_parallel()->set_pipeline(2);
  job->mutable_model()->mutable_llama()->set_tied_embeddings(true);
}

class OffloadedState : public ::testing::TestWithParam<Case> {};

TEST_P(OffloadedState, IsBitIdentical) {
  const LocalJobResult on_device = Train(JobOf(GetParam(), false));
  ExpectSame(on_device, Train(JobOf(GetParam(), true)), 0);
  LocalJobOptions ahead;
  ahead.run_ahead_on_cpu = true;
  ExpectSame(on_device, Train(JobOf(GetParam(), true), ahead), 0);
}

TEST_P(OffloadedState, ResumesWithAndWithoutOffload) {
  const TempDir dir;
  const LocalJobResult whole = Train(JobOf(GetParam(), false));
  v1::JobSpec saving = JobOf(GetParam(), true);
  saving.mutable_checkpoint()->set_dir(dir.path());
  saving.mutable_checkpoint()->set_every_steps(1);
  LocalJobOptions ahead;
  ahead.run_ahead_on_cpu = true;
  ExpectSame(whole, Train(saving, ahead), 0);
  for (const bool offload : {true, false}) {
    v1::JobSpec rest = JobOf(GetParam(), offload);
    rest.mutable_checkpoint()->set_load(dir.path() + "/iter_0000004");
    ExpectSameRest(whole, Train(rest), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OffloadedState,
    ::testing::Values(Case{"NoShard", {"", v1::STRATEGY_NO_SHARD}, 2, 2}, Case{"Alone", kParams, 1, 2},
                      Case{"Optim", {"", v1::STRATEGY_OPTIM}, 3, 2},
                      Case{"OptimGrads", {"", v1::STRATEGY_OPTIM_GRADS}, 4, 1},
                      Case{"Sharded", kParams, 3, 2}, Case{"Bf16", kParams, 2, 2, InBf16},
                      Case{"Fp8", kParams, 2, 2, InFp8}, Case{"Fp16", kParams, 2, 1, InFp16},
                      Case{"Fp8Moments", kParams, 3, 2, WithFp8Moments}, Case{"Sgd", kParams, 3, 1, BySgd},
                      Case{"PartlyFrozen", kParams, 2, 2, PartlyFrozen},
                      Case{"Stages", {"", v1::STRATEGY_OPTIM_GRADS}, 4, 3, InStages},
                      Case{"Replicas", {"", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM}, 4, 1}),
    [](const auto& info) { return info.param.name; });

// The device has the bytes of two buckets, and the host all of them.
TEST(OffloadedState, PlanCountsHostAndDeviceMemory) {
  const auto on_device = AcceptedPlan(JobOf({"", kParams, 2, 1}, false));
  const auto plan = AcceptedPlan(JobOf({"", kParams, 2, 1}, true));
  ASSERT_TRUE(on_device.ok() && plan.ok()) << plan.status();
  EXPECT_EQ(on_device->memory.host_bytes, 0);
  EXPECT_GE(plan->memory.host_bytes, on_device->memory.Of("optimizer"));
  EXPECT_EQ(plan->memory.Of("optimizer"), plan->program.state_bytes);
  EXPECT_LT(plan->memory.Of("optimizer"), on_device->memory.Of("optimizer"));
}

}  // namespace
}  // namespace fsdpd
