#include "agent/rendezvous_relay.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace fsdpd {
namespace {

const RankId kFirst{{"job", 1}, 0};
const RankId kSecond{{"job", 1}, 1};

TEST(RendezvousRelay, TellsRanksApartThatChooseTheSameNumber) {
  RendezvousRelay relay;
  const int64_t a = relay.Ask(kFirst, 1), b = relay.Ask(kSecond, 1);
  ASSERT_NE(a, b);
  EXPECT_EQ(relay.Answer(b)->rank, kSecond);
  EXPECT_EQ(relay.Answer(a)->rank, kFirst);
}

TEST(RendezvousRelay, AnswersOnceAndNeverToARankThatIsGone) {
  RendezvousRelay relay;
  const int64_t a = relay.Ask(kFirst, 5), b = relay.Ask(kSecond, 6);
  relay.Forget(kFirst);
  EXPECT_FALSE(relay.Answer(a).has_value());
  EXPECT_EQ(relay.Answer(b)->request, 6);
  EXPECT_FALSE(relay.Answer(b).has_value());
  EXPECT_FALSE(relay.Answer(999).has_value());
}

TEST(CheckStoreSet, RefusesWhatTheCoordinatorWouldNotHold) {
  v1::StoreSet set;
  EXPECT_FALSE(CheckStoreSet(set).ok());
  set.set_key("addr/0");
  set.set_value(std::string(kMaxRendezvousValueBytes, 'v'));
  EXPECT_TRUE(CheckStoreSet(set).ok());
  set.set_value(std::string(kMaxRendezvousValueBytes + 1, 'v'));
  EXPECT_FALSE(CheckStoreSet(set).ok());
  set.set_value("");
  set.set_key(std::string(257, 'k'));
  EXPECT_FALSE(CheckStoreSet(set).ok());
}

}  // namespace
}  // namespace fsdpd
