#include "agent/own_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OwnRendezvous, AnswersRequestsWhenTheKeyIsSet) {
  OwnRendezvous own;
  EXPECT_EQ(own.Get("k", 1).value(), nullptr);
  EXPECT_EQ(own.Get("k", 2).value(), nullptr);
  EXPECT_EQ(own.Get("other", 3).value(), nullptr);
  EXPECT_THAT(own.Set("k", "v").value(), ElementsAre(1, 2));
  EXPECT_EQ(*own.Get("k", 4).value(), "v");
  EXPECT_THAT(own.Set("k", "v").value(), IsEmpty()) << "each is answered once";
}

TEST(OwnRendezvous, AcceptsEmptyValue) {
  OwnRendezvous own;
  EXPECT_THAT(own.Set("k", "").value(), IsEmpty());
  ASSERT_NE(own.Get("k", 1).value(), nullptr);
  EXPECT_EQ(*own.Get("k", 1).value(), "");
}

TEST(OwnRendezvous, RejectsADifferentValueForAKey) {
  OwnRendezvous own;
  ASSERT_TRUE(own.Set("k", "v").ok());
  const absl::Status twice = own.Set("k", "w").status();
  EXPECT_TRUE(absl::IsInvalidArgument(twice));
  EXPECT_EQ(twice.message(), "rendezvous key 'k' was set twice with different values");
  EXPECT_EQ(*own.Get("k", 1).value(), "v");
}

TEST(OwnRendezvous, LimitsTheNumberOfKeys) {
  OwnRendezvous own;
  for (int i = 0; i < kMaxRendezvousKeys; ++i) ASSERT_TRUE(own.Get(std::to_string(i), i).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(own.Get("more", 1).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(own.Set("more", "v").status()));
  EXPECT_THAT(own.Set("0", "v").value(), ElementsAre(0));
}

}  // namespace
}  // namespace fsdpd
