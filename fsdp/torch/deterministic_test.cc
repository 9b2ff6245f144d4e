#include "fsdp/torch/deterministic.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

namespace fsdpd {
namespace {

bool IsOrdered() {
  return at::globalContext().deterministicAlgorithms() &&
         !at::globalContext().deterministicAlgorithmsWarnOnly() && at::globalContext().deterministicCuDNN() &&
         !at::globalContext().benchmarkCuDNN();
}

TEST(Deterministic, LastsUntilLastInstanceIsDestroyed) {
  std::optional<Deterministic> first, second;
  EXPECT_FALSE(IsOrdered());
  first.emplace();
  second.emplace();
  first.reset();
  EXPECT_TRUE(IsOrdered());
  second.reset();
  EXPECT_FALSE(IsOrdered());
}

TEST(Deterministic, RestoresPreviousState) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setBenchmarkCuDNN(true);
  {
    const Deterministic ordered;
    EXPECT_TRUE(IsOrdered());
  }
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  EXPECT_TRUE(at::globalContext().benchmarkCuDNN());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// NCCL and cuBLAS read these variables once, at their first use.
TEST(Deterministic, SetsEnvironmentForLibraries) {
  setenv("NCCL_NVLS_ENABLE", "1", /*replace=*/1);
  const Deterministic ordered;
  EXPECT_STREQ(getenv("NCCL_NVLS_ENABLE"), "0");
  EXPECT_STREQ(getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
}

}  // namespace
}  // namespace fsdpd
