#include "agent/ranks/local_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LocalRendezvous, AnswersRequestsWhenTheKeyIsSet) {
  LocalRendezvous rendezvous;
  EXPECT_EQ(rendezvous.Get("k", 1).value(), nullptr);
  EXPECT_EQ(rendezvous.Get("k", 2).value(), nullptr);
  EXPECT_EQ(rendezvous.Get("other", 3).value(), nullptr);
  EXPECT_THAT(rendezvous.Set("k", "v").value(), ElementsAre(1, 2));
  EXPECT_EQ(*rendezvous.Get("k", 4).value(), "v");
  EXPECT_THAT(rendezvous.Set("k", "v").value(), IsEmpty()) << "each is answered once";
}

TEST(LocalRendezvous, AcceptsEmptyValue) {
  LocalRendezvous rendezvous;
  EXPECT_THAT(rendezvous.Set("k", "").value(), IsEmpty());
  ASSERT_NE(rendezvous.Get("k", 1).value(), nullptr);
  EXPECT_EQ(*rendezvous.Get("k", 1).value(), "");
}

TEST(LocalRendezvous, RejectsADifferentValueForAKey) {
  LocalRendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Set("k", "v").ok());
  const absl::Status twice = rendezvous.Set("k", "w").status();
  EXPECT_TRUE(absl::IsInvalidArgument(twice));
  EXPECT_EQ(twice.message(), "rendezvous key 'k' was set twice with different values");
  EXPECT_EQ(*rendezvous.Get("k", 1).value(), "v");
}

TEST(LocalRendezvous, LimitsTheNumberOfKeys) {
  LocalRendezvous rendezvous;
  for (int i = 0; i < kMaxRendezvousKeys; ++i) ASSERT_TRUE(rendezvous.Get(std::to_string(i), i).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(rendezvous.Get("more", 1).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(rendezvous.Set("more", "v").status()));
  EXPECT_THAT(rendezvous.Set("0", "v").value(), ElementsAre(0));
}

}  // namespace
}  // namespace fsdpd
