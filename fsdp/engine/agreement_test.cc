#include "fsdp/engine/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace fsdpd {
namespace {

std::vector<absl::Status> Agree(const std::vector<uint64_t>& hashes) {
  LocalStore store;
  std::vector<absl::Status> results(hashes.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      results[rank] = AgreeOnProgram(&store, rank, hashes.size(), hashes[rank], absl::Seconds(30));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return results;
}

TEST(Agreement, EqualHashesAgreeInEveryWorld) {
  for (int world : {1, 2, 3, 8}) {
    for (const absl::Status& status : Agree(std::vector<uint64_t>(world, 42)))
      EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Agreement, EveryRankNamesWhoDiffers) {
  for (const absl::Status& status : Agree({1, 1, 2, 1})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("rank 2 has 0000000000000002"));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("1 of 4 differ"));
  }
}

TEST(Agreement, ARankThatNeverComesIsATimeout) {
  LocalStore store;
  EXPECT_TRUE(absl::IsDeadlineExceeded(AgreeOnProgram(&store, 0, 2, 1, absl::Milliseconds(10))));
}

}  // namespace
}  // namespace fsdpd
