#include "agent/ranks/internal_errors.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdpd {
namespace {

TEST(InternalErrorsTest, CatchReturnsInternalAndCounts) {
  int count = 0;
  const InternalErrors errors([&count] { ++count; });
  const RankId rank{{"job", 1}, 0};
  EXPECT_TRUE(errors.Catch(rank, [] {}).ok());
  EXPECT_EQ(count, 0);
  const absl::Status caught = errors.Catch(rank, [] { throw std::length_error("basic_string::_M_create"); });
  EXPECT_EQ(caught.code(), absl::StatusCode::kInternal);
  EXPECT_NE(caught.message().find("basic_string::_M_create"), std::string::npos) << caught;
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace fsdpd
