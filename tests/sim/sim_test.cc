// Invariants over many seeds, and reproducibility of a seed.
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/seeds.h"
#include "tests/sim/run.h"

namespace fsdpd::sim {
namespace {

constexpr int kMaxSeeds = 20'000;  // Half an hour, the limit of one nightly test.

TEST(Simulation, InvariantsHoldForAllSeeds) {
  const int seeds = std::min(Seeds(150), kMaxSeeds);
  for (int seed = 1; seed <= seeds; ++seed) {
    const Outcome outcome = sim::Run(static_cast<uint64_t>(seed));
    ASSERT_EQ(outcome.violation, "") << "seed " << seed << "; .build/bin/tests/sim/sim --seed " << seed
                                     << " --verbose prints the whole run\n"
                                     << absl::StrJoin(outcome.lines, "\n");
  }
}

TEST(Simulation, SeedIsReproducible) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Outcome first = sim::Run(seed), second = sim::Run(seed);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_EQ(first.virtual_seconds, second.virtual_seconds);
  }
}

TEST(Simulation, SeedsDiffer) { EXPECT_NE(sim::Run(1).hash, sim::Run(2).hash); }

}  // namespace
}  // namespace fsdpd::sim
