#include "agent/launch/attempt.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(CheckJobId, AcceptsSubmittedIds) {
  EXPECT_TRUE(CheckJobId("tiny-llama-k3x9q2").ok());
  EXPECT_TRUE(CheckJobId(std::string(63, 'a')).ok());
}

TEST(CheckJobId, RejectsIdsThatLeaveTheWorkDirectory) {
  for (const std::string& bad :
       {std::string(), std::string(".."), std::string("../etc"), std::string("a/b"), std::string("a.b"),
        std::string("-rf"), std::string("A"), std::string("a\0b", 3), std::string(64, 'a')}) {
    EXPECT_EQ(CheckJobId(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(RankId, OrdersByJobAttemptAndRank) {
  const RankId first{{"a", 1}, 5}, second{{"a", 2}, 0}, third{{"b", 1}, 0};
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_EQ(ToString(first), "job=a attempt=1 rank=5");
}

}  // namespace
}  // namespace fsdpd
