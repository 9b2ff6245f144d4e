#include "base/check_guard.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/check.h"

namespace fsdpd {
namespace {

TEST(CheckGuard, FailedCheckIsAStatusWithItsLocation) {
  const absl::Status status = GuardChecks([] { FSDPD_CHECK(1 + 1 == 3); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("check_guard_test.cc"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("1 + 1 == 3"), absl::string_view::npos) << status;
  EXPECT_TRUE(GuardChecks([] { FSDPD_CHECK(true); }).ok());
}

TEST(CheckGuard, UnguardedCheckAborts) {
  ASSERT_FALSE(GuardChecks([] { FSDPD_CHECK(false); }).ok());
  EXPECT_DEATH(FSDPD_CHECK(false), "check failed");
  const auto on_another_thread = [] {
    GuardChecks([] { std::thread([] { FSDPD_CHECK(false); }).join(); }).IgnoreError();
  };
  EXPECT_DEATH(on_another_thread(), "check failed");
}

}  // namespace
}  // namespace fsdpd
