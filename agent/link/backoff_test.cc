#include "agent/link/backoff.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdpd {
namespace {

TEST(Backoff, DoublesWithJitterAndResets) {
  Backoff backoff(absl::Milliseconds(100), absl::Seconds(3), 1);
  absl::Duration full = absl::Milliseconds(100);
  for (int i = 0; i < 10; ++i) {
    const absl::Duration wait = backoff.Next();
    EXPECT_GE(wait, full / 2);
    EXPECT_LE(wait, full);
    full = std::min(2 * full, absl::Seconds(3));
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), absl::Milliseconds(100));
}

TEST(Backoff, SpreadsAgentsThatFailTogether) {
  std::set<absl::Duration> waits;
  for (uint32_t seed = 0; seed < 20; ++seed)
    waits.insert(Backoff(absl::Seconds(1), absl::Seconds(1), seed).Next());
  EXPECT_GT(waits.size(), 15u);
}

}  // namespace
}  // namespace fsdpd
