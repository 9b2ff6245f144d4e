#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "fsdp/torch/serial_copy.h"

namespace fsdpd {
namespace {

// More than two parts, with a short last one, into the middle of a tensor.
TEST(SerialCopyCuda, CopiesToDevice) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const int64_t count = (int64_t{9} << 20) / 4 + 1;
  const at::Tensor values = at::arange(count, at::kInt), to = at::zeros({count + 10}, at::kInt).cuda();
  SerialCopy(values, to.narrow(0, 5, count));
  const at::Tensor got = to.cpu();
  EXPECT_TRUE(got.narrow(0, 5, count).equal(values));
  EXPECT_EQ(got.narrow(0, 0, 5).sum().item<int64_t>() + got.narrow(0, count + 5, 5).sum().item<int64_t>(), 0);
}

}  // namespace
}  // namespace fsdpd
