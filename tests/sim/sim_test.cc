// What must hold in every run, over many of them; and that a seed says all of a run.
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/seeds.h"
#include "tests/sim/run.h"

namespace fsdpd::sim {
namespace {

constexpr int kMostSeeds = 20'000;  // Half an hour, which a night has for one test.

TEST(Simulation, EveryInvariantHoldsInEverySeed) {
  const int seeds = std::min(Seeds(150), kMostSeeds);
  for (int seed = 1; seed <= seeds; ++seed) {
    const Outcome outcome = sim::Run(static_cast<uint64_t>(seed));
    ASSERT_EQ(outcome.violation, "") << "seed " << seed << "; .build/bin/tests/sim/sim --seed " << seed
                                     << " --verbose shows all of it\n"
                                     << absl::StrJoin(outcome.lines, "\n");
  }
}

TEST(Simulation, ASeedIsTheSameRunEachTime) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Outcome first = sim::Run(seed), second = sim::Run(seed);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_EQ(first.virtual_seconds, second.virtual_seconds);
  }
}

TEST(Simulation, SeedsDiffer) { EXPECT_NE(sim::Run(1).hash, sim::Run(2).hash); }

}  // namespace
}  // namespace fsdpd::sim
