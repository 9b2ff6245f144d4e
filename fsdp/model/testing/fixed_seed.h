// Test listener that seeds LibTorch's generator before each test. LibTorch seeds it differently in every
// process; with this header included, failures of tests with random tensors are reproducible.
#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace fsdpd {

class FixedSeed : public ::testing::EmptyTestEventListener {
 public:
  static bool Install() {
    ::testing::UnitTest::GetInstance()->listeners().Append(new FixedSeed);
    return true;
  }

 private:
  void OnTestStart(const ::testing::TestInfo&) override { at::manual_seed(1); }
};

inline const bool kFixedSeedInstalled = FixedSeed::Install();

}  // namespace fsdpd
