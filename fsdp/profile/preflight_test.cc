#include "fsdp/profile/preflight.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace fsdpd {
namespace {

TEST(Preflight, PairsEachTwoRanksOnce) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < PairRounds(ranks); ++round) {
      for (int rank = 0; rank < ranks; ++rank) {
        const int partner = PartnerOf(rank, ranks, round);
        if (partner < 0) continue;
        ASSERT_NE(partner, rank) << ranks << " ranks, round " << round;
        EXPECT_EQ(PartnerOf(partner, ranks, round), rank) << ranks << " ranks, round " << round;
        EXPECT_TRUE(met.insert({rank, partner}).second) << ranks << " ranks: they have met before";
      }
    }
    EXPECT_EQ(met.size(), static_cast<size_t>(ranks * (ranks - 1)));
  }
}

std::vector<absl::StatusOr<v1::PreflightDevice>> Measure(int ranks) {
  LocalStore store;
  std::vector<absl::StatusOr<v1::PreflightDevice>> devices(ranks, absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      PreflightOptions options = DefaultPreflightOptions(DeviceKind::kCpu);
      options.world.rank = options.world.device_index = rank;
      options.world.size = ranks;
      options.compute = {13, 24, 17, 0, 0, 0, 999};
      options.part_elements = 4099;
      devices[rank] = MeasureDevice(options, &store);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return devices;
}

TEST(Preflight, MeasuresDevicesRingAndPairs) {
  const auto devices = Measure(3);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(devices[rank].ok()) << devices[rank].status();
    EXPECT_EQ(devices[rank]->device(), rank);
    EXPECT_EQ(devices[rank]->name(), "cpu");
    EXPECT_GT(devices[rank]->matmul_flops(), 0);
    EXPECT_GT(devices[rank]->memory_bytes_per_second(), 0);
    EXPECT_GT(devices[rank]->all_gather_bytes_per_second(), 0);
    EXPECT_GE(devices[rank]->warmup_seconds(), 0.02);
    EXPECT_GT(devices[rank]->end_unix_nanos(), devices[rank]->begin_unix_nanos());
    std::set<int> partners;
    for (const auto& pair : devices[rank]->pairs()) {
      partners.insert(pair.device());
      EXPECT_GT(pair.bytes_per_second(), 0);
    }
    EXPECT_EQ(partners.size(), 2u);
    EXPECT_EQ(partners.count(rank), 0u);
  }
}

TEST(Preflight, SingleRankHasNoLinks) {
  const auto devices = Measure(1);
  ASSERT_TRUE(devices[0].ok()) << devices[0].status();
  EXPECT_GT(devices[0]->matmul_flops(), 0);
  EXPECT_EQ(devices[0]->all_gather_bytes_per_second(), 0);
  EXPECT_EQ(devices[0]->pairs_size(), 0);
}

}  // namespace
}  // namespace fsdpd
