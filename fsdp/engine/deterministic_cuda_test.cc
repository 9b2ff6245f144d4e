// train.deterministic on GPUs: two runs of a job are bit-identical, for several strategies, types and
// attention variants. Without it, the backward of attention uses another kernel and runs diverge. Skipped
// without a GPU.
#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "fsdp/engine/testing/test_job.h"
#include "fsdp/model/native/native_attention.h"
#include "fsdp/torch/deterministic.h"

namespace fsdpd {
namespace {

struct Case {
  std::string name;
  v1::Strategy strategy = v1::STRATEGY_OPTIM_GRADS_PARAMS;
  v1::DType compute = v1::DTYPE_BF16;
  v1::DType grad_comm = v1::DTYPE_UNSPECIFIED;
  bool experts = false;
  bool documents = false;
  bool gpt2 = false;
};

int World() {
  const int gpus = c10::cuda::device_count();
  return gpus >= 4 ? 4 : gpus >= 2 ? 2 : 1;
}

void SetSizes(const Case& of, v1::Model* model) {
  if (of.gpt2) {
    v1::Gpt2* gpt2 = model->mutable_gpt2();
    gpt2->set_vocab_size(512);
    gpt2->set_hidden_size(256);
    gpt2->set_layers(2);
    gpt2->set_heads(4);
    gpt2->set_positions(2048);
    return;
  }
  v1::Llama* llama = model->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(256);
  llama->set_intermediate_size(512);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  if (!of.experts) return;
  llama->mutable_experts()->set_count(8);
  llama->mutable_experts()->set_per_token(2);
  llama->mutable_experts()->set_intermediate_size(128);
  llama->mutable_experts()->set_balance_loss(0.01);
}

// 2048 tokens per sample: many thread blocks of attention backward add to each query's gradient.
v1::JobSpec JobOf(const Case& of, bool deterministic) {
  v1::JobSpec job = TestJob();
  SetSizes(of, job.mutable_model());
  job.mutable_data()->set_sequence_length(2048);
  job.mutable_data()->mutable_synthetic()->set_vocab(512);
  if (of.documents) job.mutable_data()->set_document_end_token(7);
  job.mutable_train()->set_steps(10);
  job.mutable_train()->set_global_batch(16);
  job.mutable_train()->set_deterministic(deterministic);
  job.mutable_optimizer()->set_clip_norm(1);
  job.mutable_precision()->set_compute(of.compute);
  job.mutable_precision()->set_grad_comm(of.grad_comm);
  job.mutable_resources()->set_device(v1::DEVICE_CUDA);
  return Over(job, {"", of.strategy}, World(), /*micro_batches=*/2);
}

// The cuBLAS workspace is configured by an environment variable that LibTorch reads at the first matrix
// product of the process, and the first job of a process may choose other kernels than later ones.
class AfterTheFirst : public testing::Environment {
 public:
  void SetUp() override {
    if (c10::cuda::device_count() > 0) Train(JobOf({}, true));
  }
};
const auto* const kAfterTheFirst = testing::AddGlobalTestEnvironment(new AfterTheFirst);

class DeterministicJobs : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(DeterministicJobs, RunsAreBitIdentical) {
  const v1::JobSpec job = JobOf(GetParam(), true);
  const LocalJobResult once = Train(job);
  for (int run = 0; run < 3; ++run) ExpectSame(once, Train(job), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DeterministicJobs,
    testing::Values(Case{"NoShard", v1::STRATEGY_NO_SHARD}, Case{"Optim", v1::STRATEGY_OPTIM},
                    Case{"OptimGrads", v1::STRATEGY_OPTIM_GRADS}, Case{"Sharded"},
                    Case{"WideWire", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_FP32},
                    Case{"Fp16", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_FP16},
                    Case{"Fp32", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_FP32},
                    Case{"Experts", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_UNSPECIFIED,
                         true},
                    Case{"Documents", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_UNSPECIFIED,
                         false, true},
                    Case{"Gpt2", v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::DTYPE_BF16, v1::DTYPE_UNSPECIFIED,
                         false, false, true}),
    [](const auto& info) { return info.param.name; });

class Attention : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
  }

  static AttentionInput InputOf(at::ScalarType type) {
    const auto heads = [&](int64_t count) {
      return at::randn({1, 4096, count, 64}, at::TensorOptions(at::kCUDA).dtype(type));
    };
    return {heads(8), heads(2), heads(2)};
  }

  // Whether twenty runs of the same backward were bit-identical.
  static bool Repeats(const AttentionInput& input) {
    const AttentionOutput output = AttentionForward(input, ChooseAttentionKernel(input));
    const at::Tensor grad = at::randn(output.out.sizes(), output.out.options());
    const AttentionInput first = AttentionBackward(grad, input, output);
    for (int i = 0; i < 20; ++i) {
      const AttentionInput next = AttentionBackward(grad, input, output);
      if (!next.q.equal(first.q) || !next.k.equal(first.k) || !next.v.equal(first.v)) return false;
    }
    return true;
  }
};

TEST_F(Attention, UsesDeterministicKernels) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const AttentionInput input = InputOf(type);
    std::cout << "without: kernel " << static_cast<int>(ChooseAttentionKernel(input)) << ", "
              << (Repeats(input) ? "the same bits" : "other bits each time") << "\n";
    const Deterministic deterministic;
    EXPECT_EQ(ChooseAttentionKernel(input), AttentionKernel::kFlash);
    EXPECT_TRUE(Repeats(input));
  }
  const Deterministic deterministic;
  const AttentionInput wide = InputOf(at::kFloat);
  EXPECT_EQ(ChooseAttentionKernel(wide), AttentionKernel::kEfficient);
  EXPECT_TRUE(Repeats(wide));
}

// Differences are up to chance: prints them, and only requires that both runs trained alike.
TEST_F(Attention, NondeterministicRunsAreClose) {
  const LocalJobResult once = Train(JobOf({}, false)), again = Train(JobOf({}, false));
  std::cout << "without: " << (once.weights == again.weights ? "the same bits" : "other bits") << "\n";
  ExpectSame(once, again, 2e-2);
}

}  // namespace
}  // namespace fsdpd
