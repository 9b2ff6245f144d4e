// Offloading on GPUs: a job with optimizer state or activations in host memory is bit-identical to one
// without, submitted instruction by instruction or as graphs, saved and resumed.
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

struct Case {
  std::string name;
  v1::Strategy strategy;
  v1::DType compute = v1::DTYPE_BF16;
  v1::DType moments = v1::DTYPE_FP32;
  bool graphs = false;
  bool sgd = false;
  bool state = true;
  int layers = 0;  // Layers with offloaded activations.
};

int World() {
  const int gpus = c10::cuda::device_count();
  return gpus >= 4 ? 4 : gpus >= 2 ? 2 : 1;
}

// Deterministic sums, so that two runs are bit-identical.
v1::JobSpec JobOf(const Case& of, bool offload) {
  v1::JobSpec job = TestJob();
  auto* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(256);
  llama->set_intermediate_size(512);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_layers(6);
  job.mutable_data()->set_sequence_length(128);
  job.mutable_data()->mutable_synthetic()->set_vocab(512);
  job.mutable_train()->set_steps(8);
  job.mutable_train()->set_global_batch(16);
  job.mutable_train()->set_graphs(of.graphs);
  job.mutable_train()->set_deterministic(true);
  job.mutable_optimizer()->set_clip_norm(1);
  if (of.sgd) {
    job.mutable_optimizer()->clear_adamw();
    job.mutable_optimizer()->mutable_sgd()->set_lr(1e-2);
    job.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  }
  job.mutable_precision()->set_compute(of.compute);
  job.mutable_precision()->set_moments(of.moments);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(offload && of.state);
  job.mutable_fsdp()->mutable_offload()->set_activation_layers(offload ? of.layers : 0);
  job.mutable_resources()->set_device(v1::DEVICE_CUDA);
  return Over(job, {"", of.strategy}, World(), 2);
}

class Offloaded : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    if (GetParam().compute == v1::DTYPE_FP8 && !CheckMultipliesFp8(0).ok())
      GTEST_SKIP() << "no GPU that multiplies FP8";
  }
};

TEST_P(Offloaded, IsBitIdentical) {
  const LocalJobResult offloaded = Train(JobOf(GetParam(), true));
  ExpectSame(Train(JobOf(GetParam(), false)), offloaded, 0);
  for (const std::vector<v1::StepReport>& steps : offloaded.reports) {
    for (size_t s = 2; s < steps.size() && !GetParam().graphs; ++s)
      EXPECT_EQ(steps[s].memory().device_mallocs(), steps[1].memory().device_mallocs()) << "step " << s + 1;
  }
}

TEST_P(Offloaded, ResumesWithAndWithoutOffload) {
  const TempDir dir;
  const LocalJobResult whole = Train(JobOf(GetParam(), false));
  v1::JobSpec saving = JobOf(GetParam(), true);
  saving.mutable_checkpoint()->set_dir(dir.path());
  saving.mutable_checkpoint()->set_every_steps(2);
  ExpectSame(whole, Train(saving), 0);
  for (const bool offload : {true, false}) {
    v1::JobSpec rest = JobOf(GetParam(), offload);
    rest.mutable_checkpoint()->set_load(dir.path() + "/iter_0000004");
    ExpectSameRest(whole, Train(rest), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Offloaded,
    testing::Values(
        Case{"Sharded", v1::STRATEGY_OPTIM_GRADS_PARAMS},
        Case{"Bf16Moments", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_BF16},
        Case{"Fp8Moments", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_FP8, true},
        Case{"Fp32", v1::STRATEGY_OPTIM_GRADS, v1::DTYPE_FP32},
        Case{"Fp16", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_FP16}, Case{"NoShard", v1::STRATEGY_NO_SHARD},
        Case{"Optim", v1::STRATEGY_OPTIM}, Case{"Fp8", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_FP8},
        Case{"Sgd", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_FP32, false, true},
        Case{"Graphs", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_FP32, true},
        Case{"Kept", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_FP32, false, false, false, 3},
        Case{"KeptInGraphs", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_FP32, true, false,
             false, 4},
        Case{"KeptAndState", v1::STRATEGY_OPTIM_GRADS, v1::DTYPE_BF16, v1::DTYPE_BF16, true, false, true, 2}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdpd
