// Include this in a test that draws random tensors: LibTorch's generator starts from another number in every
// process, and this sets it before each test, so that a failure comes again.
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
