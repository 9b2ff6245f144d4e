#include "fsdp/model/native/native_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr int64_t kInputs = 5;
const std::vector<int64_t> kOutputs = {4, 3, 1};

// Matrices as parameters of a bucket, with `padding` elements after each.
Matrices InARow(int64_t padding) {
  const at::Tensor flat = at::randn({100});
  Matrices matrices;
  int64_t begin = 7;
  for (const int64_t outputs : kOutputs) {
    matrices.push_back(flat.narrow(0, begin, outputs * kInputs).view({outputs, kInputs}));
    begin += outputs * kInputs + padding;
  }
  return matrices;
}

void ExpectNear(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-5);
}

TEST(AsOne, OnlyNeighboursInOrderOfOneType) {
  const Matrices near = InARow(0), far = InARow(1);
  EXPECT_TRUE(AsOne(near).equal(at::cat(near)));
  EXPECT_EQ(AsOne(near).data_ptr(), near[0].data_ptr());  // A view.
  EXPECT_TRUE(AsOne({near[1]}).equal(near[1]));
  EXPECT_FALSE(AsOne(far).defined());
  EXPECT_FALSE(AsOne({near[1], near[0]}).defined());
  EXPECT_FALSE(AsOne({near[0], near[1].clone()}).defined());
  EXPECT_FALSE(AsOne({near[0], at::Tensor(), near[2]}).defined());  // A frozen one.
  EXPECT_FALSE(AsOne({at::Tensor(), near[1]}).defined());
}

TEST(NativeLinear, NeighboursAndOthersGiveTheSame) {
  const at::Tensor x = at::randn({6, kInputs}), grad = at::randn({6, 8});
  for (const int64_t padding : {0, 3}) {
    const Matrices matrices = InARow(padding);
    const at::Tensor whole = at::cat(matrices);
    ExpectNear(LinearForward(x, matrices), at::matmul(x, whole.t()));
    ExpectNear(LinearBackward(grad, matrices), at::matmul(grad, whole));
    const Matrices into = InARow(padding);
    const at::Tensor before = at::cat(into);
    LinearGradsInto(grad, x, kOutputs, /*accumulate=*/true, into);
    ExpectNear(at::cat(into), before + at::matmul(grad.t(), x));
    LinearGradsInto(grad, x, kOutputs, /*accumulate=*/false, into);
    ExpectNear(at::cat(into), at::matmul(grad.t(), x));
  }
}

TEST(NativeLinear, BiasesGoWithTheirMatrices) {
  const at::Tensor x = at::randn({6, kInputs}), grad = at::randn({6, 8});
  const Matrices matrices = InARow(0), biases = {at::randn({4}), at::Tensor(), at::randn({1})};
  at::Tensor want = at::matmul(x, at::cat(matrices).t());
  want.narrow(1, 0, 4).add_(biases[0]);
  want.narrow(1, 7, 1).add_(biases[2]);
  ExpectNear(LinearForward(x, matrices, biases), want);
  ExpectNear(LinearForward(x, matrices, Matrices(3)), at::matmul(x, at::cat(matrices).t()));
  const Matrices into = InARow(0), biases_into = {at::full({4}, 9.0), at::Tensor(), at::full({1}, 9.0)};
  LinearGradsInto(grad, x, kOutputs, /*accumulate=*/false, into, biases_into);
  ExpectNear(biases_into[0], grad.narrow(1, 0, 4).sum(0));
  ExpectNear(biases_into[2], grad.narrow(1, 7, 1).sum(0));
}

TEST(NativeLinear, AFrozenMatrixIsLeftOut) {
  const at::Tensor x = at::randn({6, kInputs}), grad = at::randn({6, 8});
  Matrices into = InARow(0);
  const at::Tensor frozen = into[1].clone(), place = into[1];
  into[1] = at::Tensor();
  LinearGradsInto(grad, x, kOutputs, /*accumulate=*/false, into);
  EXPECT_TRUE(place.equal(frozen));
  const at::Tensor all = at::matmul(grad.t(), x);
  ExpectNear(into[0], all.narrow(0, 0, 4));
  ExpectNear(into[2], all.narrow(0, 7, 1));
}

}  // namespace
}  // namespace fsdpd
