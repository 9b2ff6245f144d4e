// The summing kernel against its CPU references: SumInOrder and AddSums (fsdp/comm/ordered_sum.h) bit for
// bit, and squares against double precision, for aligned and unaligned sizes and addresses. Skipped without a
// GPU.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "fsdp/comm/ordered_sum.h"
#include "fsdp/kernels/sum_parts.h"
#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

struct Case {
  DType part;
  DType sum;
  bool accumulate;
};

class SumParts : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!CudaAvailable()) GTEST_SKIP() << "no GPU";
    ASSERT_TRUE(SetCudaDevice(0).ok());
  }

  // The CPU's result for `parts`, [ranks, count], and the previous content of the output.
  at::Tensor TiedReplica(const at::Tensor& parts, const at::Tensor& before) const {
    const int64_t count = before.numel();
    std::vector<const void*> of_ranks;
    for (int64_t r = 0; r < parts.size(0); ++r) of_ranks.push_back(parts.select(0, r).const_data_ptr());
    const at::Tensor sums = at::zeros({count}, at::kFloat);
    SumInOrder(of_ranks, GetParam().part, count, sums.mutable_data_ptr<float>());
    if (!GetParam().accumulate) return sums.to(ScalarTypeOf(GetParam().sum));
    at::Tensor to = before.clone();
    AddSums(sums.const_data_ptr<float>(), count, GetParam().sum, to.mutable_data_ptr());
    return to;
  }

  // `off`: misalignment of addresses, in elements.
  void ExpectEqualsItsTwin(int ranks, int64_t count, int64_t off, bool squares) const {
    const at::Tensor parts = at::randn({ranks, count}).to(ScalarTypeOf(GetParam().part));
    const at::Tensor before = at::randn({count}).to(ScalarTypeOf(GetParam().sum));
    const at::Tensor want = TiedReplica(parts, before);
    const at::Tensor sent = Shifted(parts.flatten(), off), sum = Shifted(before, off);
    const int64_t own = kernels::SquaresOf(count);
    const at::Tensor taken = at::full({own + 1}, -1.0f).cuda();
    kernels::SumPartsArgs args = {};
    args.parts = sent.const_data_ptr();
    args.sum = sum.mutable_data_ptr();
    args.squares = squares ? taken.mutable_data_ptr<float>() : nullptr;
    args.count = count;
    args.ranks = ranks;
    args.addend = GetParam().accumulate ? args.sum : nullptr;
    args.type = GetParam().part;
    args.sum_type = GetParam().sum;
    kernels::SumParts(args, kernels::CurrentStream(0));
    EXPECT_TRUE(sum.cpu().equal(want)) << ranks << " parts of " << count << ", off by " << off;
    const at::Tensor host = taken.cpu();
    EXPECT_TRUE(host.narrow(0, squares ? own : 0, squares ? 1 : own + 1).eq(-1).all().item<bool>());
    for (int64_t s = 0; squares && s < own; ++s) {
      const int64_t begin = s * kernels::kSquaresPerPart;
      const at::Tensor of = want.narrow(0, begin, std::min(kernels::kSquaresPerPart, count - begin));
      const double exact = of.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(host[s].item<double>() / exact, 1, 1e-6) << s << " of " << count;
    }
  }

 private:
  static at::Tensor Shifted(const at::Tensor& flat, int64_t off) {
    const at::Tensor room = at::zeros({flat.numel() + off}, flat.options().device(at::kCUDA));
    const at::Tensor shifted = room.narrow(0, off, flat.numel());
    shifted.copy_(flat);
    return shifted;
  }
};

TEST_P(SumParts, MatchesTheCpuReference) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int64_t count : {0, 1, 7, 1000, 1023, 4096, 4097, 12'288, 100'003}) {
      for (const int64_t off : {0, 1}) ExpectEqualsItsTwin(ranks, count, off, /*squares=*/true);
    }
  }
}

TEST_P(SumParts, SquaresAreOptional) { ExpectEqualsItsTwin(2, 5000, 0, /*squares=*/false); }

// A norm must not change from run to run.
TEST_P(SumParts, SquaresAreDeterministic) {
  const at::Tensor parts = at::randn({2, 1'000'000}).to(ScalarTypeOf(GetParam().part)).cuda();
  const at::Tensor sum = at::zeros({1'000'000}, parts.options().dtype(ScalarTypeOf(GetParam().sum)));
  at::Tensor first;
  for (int run = 0; run < 5; ++run) {
    sum.zero_();
    const at::Tensor taken = at::zeros({kernels::SquaresOf(1'000'000)}, parts.options().dtype(at::kFloat));
    kernels::SumPartsArgs args = {};
    args.parts = parts.const_data_ptr();
    args.addend = GetParam().accumulate ? sum.const_data_ptr() : nullptr;
    args.sum = sum.mutable_data_ptr();
    args.squares = taken.mutable_data_ptr<float>();
    args.count = 1'000'000;
    args.ranks = 2;
    args.type = GetParam().part;
    args.sum_type = GetParam().sum;
    kernels::SumParts(args, kernels::CurrentStream(0));
    if (run == 0) first = taken;
    EXPECT_TRUE(taken.equal(first));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SumParts,
    ::testing::Values(Case{DType::kBf16, DType::kFp32, false}, Case{DType::kBf16, DType::kFp32, true},
                      Case{DType::kBf16, DType::kBf16, false}, Case{DType::kBf16, DType::kBf16, true},
                      Case{DType::kFp16, DType::kFp32, true}, Case{DType::kFp32, DType::kFp32, false}));

}  // namespace
}  // namespace fsdpd
