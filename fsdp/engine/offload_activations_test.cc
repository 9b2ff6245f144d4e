// Offloaded activations: a job with offloaded layers is bit-identical. On CPU the device's memory is host
// memory, too; the test distinguishes who holds it, and when.
#include <gtest/gtest.h>

#include <fstream>
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
  v1::Recompute recompute;
  int offloaded;
  std::function<void(v1::JobSpec*)> change = [](v1::JobSpec*) {};
};

v1::JobSpec JobOf(const Case& of, int offloaded) {
  v1::JobSpec job = TestJob();
  job.mutable_model()->mutable_llama()->set_layers(5);
  job.mutable_optimizer()->set_clip_norm(0.5);
  job.mutable_fsdp()->set_recompute(of.recompute);
  job.mutable_fsdp()->mutable_offload()->set_activation_layers(offloaded);
  of.change(&job);
  return Over(job, of.mesh, of.world, of.micro_batches);
}

void InBf16(v1::JobSpec* job) { job->mutable_precision()->set_compute(v1::DTYPE_BF16); }

// With evaluations between steps, which save no activations.
void Evaluated(v1::JobSpec* job) {
  static const TempDir* const dir = new TempDir();
  const std::string path = dir->path() + "/text";
  std::ofstream(path) << std::string(4096, 'a') + std::string(4096, 'b');
  job->mutable_model()->mutable_llama()->set_vocab_size(256);
  job->mutable_data()->clear_synthetic();
  v1::TokenFile* const file = job->mutable_data()->add_tokens();
  file->set_path(path);
  file->set_type(v1::TOKEN_TYPE_U8);
  *job->mutable_data()->add_validation() = *file;
  job->mutable_train()->mutable_evaluation()->set_every_steps(2);
}

void WithState(v1::JobSpec* job) { job->mutable_fsdp()->mutable_offload()->set_optimizer(true); }

void SharingSamples(v1::JobSpec* job) { job->mutable_parallel()->set_context(2); }
void SharingMatrices(v1::JobSpec* job) {
  v1::Llama* llama = job->mutable_model()->mutable_llama();
  llama->set_vocab_size(44);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_head_size(6);
  job->mutable_data()->set_sequence_length(24);
  job->mutable_parallel()->set_tensor(2);
}

void OfLatents(v1::JobSpec* job) {
  v1::Llama* llama = job->mutable_model()->mutable_llama();
  llama->clear_kv_heads();
  v1::Llama::LatentAttention* latent = llama->mutable_latent_attention();
  latent->set_rank(8);
  latent->set_query_rank(12);
  latent->set_plain_head_size(4);
  latent->set_rotary_head_size(4);
  latent->set_value_head_size(4);
}

void WithAdapters(v1::JobSpec* job) { job->mutable_train()->mutable_lora()->set_rank(3); }

class OffloadedActivations : public ::testing::TestWithParam<Case> {};

TEST_P(OffloadedActivations, IsBitIdentical) {
  const LocalJobResult on_device = Train(JobOf(GetParam(), 0));
  ExpectSame(on_device, Train(JobOf(GetParam(), GetParam().offloaded)), 0);
  LocalJobOptions ahead;
  ahead.run_ahead_on_cpu = true;
  ExpectSame(on_device, Train(JobOf(GetParam(), GetParam().offloaded), ahead), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OffloadedActivations,
    ::testing::Values(Case{"All", kParams, 1, 2, v1::RECOMPUTE_NONE, 5},
                      Case{"NoShard", {"", v1::STRATEGY_NO_SHARD}, 2, 2, v1::RECOMPUTE_NONE, 2},
                      Case{"OptimGrads", {"", v1::STRATEGY_OPTIM_GRADS}, 4, 1, v1::RECOMPUTE_SELECTIVE, 3},
                      Case{"Sharded", kParams, 3, 2, v1::RECOMPUTE_FULL, 2},
                      Case{"Bf16", kParams, 2, 2, v1::RECOMPUTE_SELECTIVE, 4, InBf16},
                      Case{"Evaluated", kParams, 2, 1, v1::RECOMPUTE_NONE, 3, Evaluated},
                      Case{"WithState", kParams, 2, 2, v1::RECOMPUTE_NONE, 3, WithState},
                      Case{"Context", kParams, 4, 1, v1::RECOMPUTE_NONE, 3, SharingSamples},
                      Case{"Tensor", kParams, 4, 1, v1::RECOMPUTE_SELECTIVE, 3, SharingMatrices},
                      Case{"Latents", kParams, 2, 1, v1::RECOMPUTE_SELECTIVE, 3, OfLatents},
                      Case{"Lora", kParams, 2, 2, v1::RECOMPUTE_NONE, 3, WithAdapters},
                      Case{"LoraSelective", kParams, 2, 1, v1::RECOMPUTE_SELECTIVE, 5, WithAdapters},
                      Case{"LoraFull", kParams, 3, 1, v1::RECOMPUTE_FULL, 2, WithAdapters}),
    [](const auto& info) { return info.param.name; });

TEST(OffloadedActivations, ResumesWithAndWithoutOffload) {
  const Case of{"", kParams, 2, 2, v1::RECOMPUTE_NONE, 3};
  const TempDir dir;
  const LocalJobResult whole = Train(JobOf(of, 0));
  v1::JobSpec saving = JobOf(of, of.offloaded);
  saving.mutable_checkpoint()->set_dir(dir.path());
  saving.mutable_checkpoint()->set_every_steps(1);
  ExpectSame(whole, Train(saving), 0);
  for (const int offloaded : {0, 2}) {
    v1::JobSpec rest = JobOf(of, offloaded);
    rest.mutable_checkpoint()->set_load(dir.path() + "/iter_0000004");
    ExpectSameRest(whole, Train(rest), 0);
  }
}

TEST(OffloadedActivations, PlanCountsHostAndDeviceMemory) {
  const Case of{"", kParams, 2, 1, v1::RECOMPUTE_NONE, 3};
  const auto on_device = AcceptedPlan(JobOf(of, 0)), plan = AcceptedPlan(JobOf(of, 3));
  ASSERT_TRUE(on_device.ok() && plan.ok()) << plan.status();
  EXPECT_EQ(on_device->memory.host_bytes, 0);
  EXPECT_GT(plan->memory.host_bytes, 0);
  EXPECT_LT(plan->memory.peak_bytes, on_device->memory.peak_bytes);
}

}  // namespace
}  // namespace fsdpd
