// GPU optimizers against the CPU's, which adamw_test and sgd_test compare with formulas. Built with
// --config=cuda; skipped without a GPU.
#include <ATen/TensorOperators.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/optimizer/fp8_moments.h"
#include "fsdp/optimizer/make_optimizer.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/optimizer/testing/step_scalars.h"
#include "fsdp/optimizer/update_groups.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

constexpr int64_t kElements = 100'000;

// Three runs, two of them without decay at three times the rate. With `off` 1 their ends are not aligned to
// the kernels' packs, with 0 they are.
Layout Runs(int64_t off) {
  Bucket bucket;
  bucket.params = {{0, "a", {33'328 + off}, 0, 3, 0, 33'328 + off},
                   {1, "b", {50'000 + off}, 0.1, 1, 33'328 + off, 50'000 + off},
                   {2, "c", {16'000 + off}, 0, 3, 83'328 + 2 * off, 16'000 + off}};
  bucket.elements = 99'328 + 3 * off;
  bucket.bucket_elements = bucket.shard_elements = bucket.main_elements = kElements;
  Layout layout;
  layout.buckets = {bucket};
  return layout;
}

Spec SpecOf(OptimizerKind kind, double momentum, bool nesterov, DType narrow) {
  Spec spec;
  spec.optimizer.kind = kind;
  spec.optimizer.momentum = momentum;
  spec.optimizer.nesterov = nesterov;
  spec.precision.moments = spec.precision.main_grads = narrow;
  return spec;
}

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CudaAvailable()) GTEST_SKIP() << "no GPU";
    ASSERT_TRUE(SetCudaDevice(0).ok());
  }
};

class CudaUpdates : public OnCuda, public ::testing::WithParamInterface<Spec> {};

void ExpectEqualUpdates(const Spec& spec, const Layout& layout) {
  const at::TensorOptions moments = at::TensorOptions().dtype(ScalarTypeOf(spec.precision.moments));
  BucketShard cpu;
  cpu.main = at::randn({kElements});
  for (int i = 0; i < spec.optimizer.moments(); ++i) cpu.moments.push_back(at::zeros({kElements}, moments));
  BucketShard gpu;
  gpu.main = cpu.main.cuda();
  for (const at::Tensor& moment : cpu.moments) gpu.moments.push_back(moment.cuda());
  const auto cpu_optimizer = MakeOptimizer(spec, layout, {}, at::kCPU);
  const auto gpu_optimizer = MakeOptimizer(spec, layout, {}, at::kCUDA);
  for (int step = 1; step <= 5; ++step) {
    const bool skip = step == 1 || step == 3;
    const at::Tensor before = gpu.main.clone();
    cpu.grad = at::randn({kElements}).to(ScalarTypeOf(spec.precision.main_grads));
    if (skip) cpu.grad.fill_(std::numeric_limits<float>::infinity());
    gpu.grad = cpu.grad.cuda();
    cpu_optimizer->BeginStep(step);
    cpu_optimizer->Count(ScalarsOf(1e-2, 3, skip));
    cpu_optimizer->Update(0, cpu, ScalarsOf(1e-2, 3, skip));
    gpu_optimizer->BeginStep(step);
    gpu_optimizer->Count(ScalarsOf(1e-2, 3, skip, at::kCUDA));
    gpu_optimizer->Update(0, gpu, ScalarsOf(1e-2, 3, skip, at::kCUDA));
    EXPECT_EQ(gpu.main.equal(before), skip) << step;
    // A bf16 moment may round to its neighbor if fp32 differs in the last bit.
    const double allowed = spec.precision.moments == DType::kFp32 ? 1e-6 : 1e-3;
    EXPECT_LT((gpu.main.cpu() - cpu.main).abs().max().item<double>(), allowed) << step;
  }
}

TEST_P(CudaUpdates, MatchesTheCpu) {
  ExpectEqualUpdates(GetParam(), Runs(/*off=*/0));
  ExpectEqualUpdates(GetParam(), Runs(/*off=*/1));
}

// fp32 values rounded as split fp32 stores them.
at::Tensor Stored(const at::Tensor& fp32) {
  const SplitFp32 split = SplitFp32::Make(fp32.numel(), at::kCPU);
  split.Write(0, fp32.cpu());
  return split.Read();
}

// A split-fp32 parameter is updated in fp32: its next value is that of the same fp32 parameter, rounded as
// split fp32 stores it.
TEST_F(OnCuda, SplitFp32MatchesFp32) {
  for (const int64_t off : {0, 1}) {
    for (const DType narrow : {DType::kFp32, DType::kBf16, DType::kFp8}) {
      const Spec spec = SpecOf(OptimizerKind::kAdamW, 0, false, narrow);
      const at::ScalarType grads = narrow == DType::kFp32 ? at::kFloat : at::kBFloat16;
      const at::TensorOptions moments = at::TensorOptions(at::kCUDA).dtype(MomentTypeOf(narrow));
      BucketShard whole, split_shard;
      whole.main = Stored(at::randn({kElements})).cuda();
      split_shard.split = SplitFp32::Make(kElements, at::Device(at::kCUDA, 0));
      split_shard.split.Write(0, whole.main.cpu());
      for (BucketShard* shard : {&whole, &split_shard}) {
        for (int i = 0; i < 2; ++i) shard->moments.push_back(at::zeros({kElements}, moments));
      }
      const auto of_whole = MakeOptimizer(spec, Runs(off), {}, at::kCUDA);
      const auto of_split_fp32 = MakeOptimizer(spec, Runs(off), {}, at::kCUDA);
      for (int step = 1; step <= 5; ++step) {
        const at::Tensor before = split_shard.split.Read();
        whole.grad = split_shard.grad = at::randn({kElements}).to(grads).cuda();
        const StepScalars scalars = ScalarsOf(1e-2, 3, /*found_nonfinite=*/step == 3, at::kCUDA);
        of_whole->BeginStep(step);
        of_whole->Count(scalars);
        of_whole->Update(0, whole, scalars);
        of_split_fp32->BeginStep(step);
        of_split_fp32->Count(scalars);
        of_split_fp32->Update(0, split_shard, scalars);
        whole.main.copy_(Stored(whole.main));  // Ties that moved are moved in both.
        const at::Tensor read = split_shard.split.Read();
        ASSERT_TRUE(read.equal(whole.main.cpu())) << step;
        ASSERT_TRUE(split_shard.split.high.equal(whole.main.to(at::kBFloat16))) << step;
        for (int i = 0; i < 2; ++i) ASSERT_TRUE(split_shard.moments[i].equal(whole.moments[i])) << step;
        ASSERT_EQ(read.equal(before), step == 3);
      }
    }
  }
}

// The formula of kernels/adamw_kernel.h with the division and the square root of IEEE 754.
void UpdateOnHost(const OptimizerConfig& config, const UpdateGroup& group, double learning_rate, int step,
                  const BucketShard& shard, float divisor) {
  const double lr = learning_rate * group.lr_scale;
  const auto beta1 = static_cast<float>(config.beta1), beta2 = static_cast<float>(config.beta2),
             eps = static_cast<float>(config.eps), keep = static_cast<float>(1 - lr * group.weight_decay),
             rate = static_cast<float>(lr / (1 - std::pow(config.beta1, step))),
             root = static_cast<float>(1 / std::sqrt(1 - std::pow(config.beta2, step)));
  const auto at = [](const at::Tensor& flat) { return flat.mutable_data_ptr<float>(); };
  float *const param = at(shard.main), *const m = at(shard.moments[0]), *const v = at(shard.moments[1]);
  for (const BucketRange& run : group.runs) {
    for (int64_t i = run.begin; i < run.begin + run.elements; ++i) {
      const float g = at(shard.grad)[i] / divisor;
      m[i] = std::fma(beta1, m[i], (1 - beta1) * g);
      v[i] = std::fma(beta2, v[i], (1 - beta2) * g * g);
      param[i] = std::fma(param[i], keep, -(rate * m[i] / std::fma(std::sqrt(v[i]), root, eps)));
    }
  }
}

TEST_F(OnCuda, AdamWRoundsLikeIeee754) {
  const Spec spec = SpecOf(OptimizerKind::kAdamW, 0, false, DType::kFp32);
  for (const int64_t off : {0, 1}) {
    const Layout layout = Runs(off);
    const auto optimizer = MakeOptimizer(spec, layout, {}, at::kCUDA);
    BucketShard cpu, gpu;
    cpu.main = at::randn({kElements});
    cpu.moments = {at::zeros({kElements}), at::zeros({kElements})};
    gpu.main = cpu.main.cuda();
    for (const at::Tensor& moment : cpu.moments) gpu.moments.push_back(moment.cuda());
    const std::vector<double> divisors = {1, 0.7, 3, 1.9999999, 65536, 1.2345678e5};
    for (int step = 1; step <= static_cast<int>(divisors.size()); ++step) {
      const double divisor = divisors[step - 1];
      cpu.grad = at::randn({kElements}).mul(at::exp2(at::randn({kElements}) * 6 - 12)).mul(divisor);
      cpu.grad.narrow(0, 0, kElements / 8).zero_();
      gpu.grad = cpu.grad.cuda();
      const StepScalars scalars = ScalarsOf(1e-2, divisor, /*found_nonfinite=*/false, at::kCUDA);
      optimizer->BeginStep(step);
      optimizer->Count(scalars);
      optimizer->Update(0, gpu, scalars);
      for (const UpdateGroup& group : UpdateGroupsOf(layout.buckets[0], {0, kElements}))
        UpdateOnHost(spec.optimizer, group, 1e-2, step, cpu, static_cast<float>(divisor));
      ASSERT_TRUE(gpu.main.cpu().equal(cpu.main)) << step;
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(gpu.moments[i].cpu().equal(cpu.moments[i])) << step << " " << i;
    }
  }
}

// The kernel computes as with fp32 moments, and stores what the CPU would store.
TEST_F(OnCuda, Fp8MomentsMatchTheCpu) {
  for (const int64_t off : {0, 1}) {
    const Spec spec = SpecOf(OptimizerKind::kAdamW, 0, false, DType::kFp32);
    BucketShard narrow, wide;
    narrow.main = at::randn({kElements}).cuda();
    wide.main = narrow.main.clone();
    const auto zeros = [](at::ScalarType type) {
      return at::zeros({kElements}, at::TensorOptions(at::kCUDA).dtype(type));
    };
    for (int i = 0; i < 2; ++i) {
      narrow.moments.push_back(zeros(at::kByte));
      wide.moments.push_back(zeros(at::kFloat));
    }
    const auto of_narrow = MakeOptimizer(spec, Runs(off), {}, at::kCUDA);
    const auto of_wide = MakeOptimizer(spec, Runs(off), {}, at::kCUDA);
    for (int step = 1; step <= 5; ++step) {
      const bool skip = step == 3;
      // From below the smallest value to the largest clipped gradient.
      narrow.grad = at::randn({kElements}).mul(at::exp2(at::randn({kElements}) * 8 - 14)).clamp(-4, 4).cuda();
      wide.grad = narrow.grad.clone();
      const StepScalars scalars = ScalarsOf(1e-2, 1, skip, at::kCUDA);
      for (const auto& [optimizer, shard] :
           {std::pair(of_narrow.get(), &narrow), std::pair(of_wide.get(), &wide)}) {
        optimizer->BeginStep(step);
        optimizer->Count(scalars);
        optimizer->Update(0, *shard, scalars);
      }
      ASSERT_TRUE(narrow.main.equal(wide.main)) << step;
      const at::TensorOptions bytes = at::TensorOptions().dtype(at::kByte);
      const std::vector<at::Tensor> stored = {at::zeros({kElements}, bytes), at::zeros({kElements}, bytes)};
      const int taken = step - (step >= 3 ? 1 : 0);
      StoreMoments({wide.moments[0].cpu(), wide.moments[1].cpu()}, wide.main.cpu(), taken, stored);
      for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(narrow.moments[i].cpu().equal(stored[i])) << step << " " << i;
        wide.moments[i] = WidenMoments(stored[i], i).cuda();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaUpdates,
                         ::testing::Values(SpecOf(OptimizerKind::kAdamW, 0, false, DType::kFp32),
                                           SpecOf(OptimizerKind::kAdamW, 0, false, DType::kBf16),
                                           SpecOf(OptimizerKind::kSgd, 0, false, DType::kFp32),
                                           SpecOf(OptimizerKind::kSgd, 0, false, DType::kBf16),
                                           SpecOf(OptimizerKind::kSgd, 0.9, false, DType::kFp32),
                                           SpecOf(OptimizerKind::kSgd, 0.9, true, DType::kBf16)));

}  // namespace
}  // namespace fsdpd
