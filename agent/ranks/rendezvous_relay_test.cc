#include "agent/ranks/rendezvous_relay.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace fsdpd {
namespace {

const RankId kFirst{{"job", 1}, 0};
const RankId kSecond{{"job", 1}, 1};

v1::StoreGet Get(int64_t request) {
  v1::StoreGet get;
  get.set_key("addr/0");
  get.set_request(request);
  return get;
}

v1::StoreSet Set(const std::string& key, size_t bytes) {
  v1::StoreSet set;
  set.set_key(key);
  set.set_value(std::string(bytes, 'v'));
  return set;
}

TEST(RendezvousRelay, SeparatesEqualRequestNumbersOfRanks) {
  RendezvousRelay relay;
  const int64_t a = relay.Ask(kFirst, Get(1)).value(), b = relay.Ask(kSecond, Get(1)).value();
  ASSERT_NE(a, b);
  EXPECT_EQ(relay.Answer(b)->rank, kSecond);
  EXPECT_EQ(relay.Answer(a)->rank, kFirst);
}

TEST(RendezvousRelay, AnswersOnceAndNotAfterForget) {
  RendezvousRelay relay;
  const int64_t a = relay.Ask(kFirst, Get(5)).value(), b = relay.Ask(kSecond, Get(6)).value();
  relay.Forget(kFirst);
  EXPECT_FALSE(relay.Answer(a).has_value());
  EXPECT_EQ(relay.Answer(b)->request, 6);
  EXPECT_FALSE(relay.Answer(b).has_value());
  EXPECT_FALSE(relay.Answer(999).has_value());
}

TEST(RendezvousRelay, RejectsInvalidKeysAndValues) {
  RendezvousRelay relay;
  EXPECT_FALSE(relay.Set(kFirst, Set("", 1)).ok());
  EXPECT_FALSE(relay.Set(kFirst, Set(std::string(257, 'k'), 1)).ok());
  EXPECT_FALSE(relay.Set(kFirst, Set("addr/0", kMaxRendezvousValueBytes + 1)).ok());
  EXPECT_TRUE(relay.Set(kFirst, Set("addr/0", kMaxRendezvousValueBytes)).ok());
  EXPECT_FALSE(relay.Ask(kFirst, v1::StoreGet()).ok());
}

TEST(RendezvousRelay, LimitsSetBytesPerRank) {
  RendezvousRelay relay;
  absl::Status status;
  int64_t bytes = 0;
  while (status.ok()) {
    status = relay.Set(kFirst, Set("key", kMaxRendezvousValueBytes));
    if (status.ok()) bytes += kMaxRendezvousValueBytes;
    ASSERT_LE(bytes, RendezvousRelay::kMaxRankBytes);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(relay.Set(kSecond, Set("key", 1)).ok());
}

TEST(RendezvousRelay, LimitsOpenGetsPerRank) {
  RendezvousRelay relay;
  int64_t last = 0;
  for (int i = 0; i < RendezvousRelay::kMaxOpenGets; ++i) last = relay.Ask(kFirst, Get(i)).value();
  EXPECT_TRUE(absl::IsResourceExhausted(relay.Ask(kFirst, Get(0)).status()));
  EXPECT_TRUE(relay.Ask(kSecond, Get(0)).ok());
  relay.Answer(last);
  EXPECT_TRUE(relay.Ask(kFirst, Get(0)).ok());
}

}  // namespace
}  // namespace fsdpd
