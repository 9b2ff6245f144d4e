#include "base/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace fsdpd {
namespace {

bool Never() { return false; }

TEST(ParallelFor, CallsEachItemOnce) {
  for (const int threads : {1, 3, 50}) {
    std::vector<std::atomic<int>> done(20);
    const absl::Status status = ParallelFor(done.size(), threads, Never, [&](size_t i) {
      ++done[i];
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok());
    for (const std::atomic<int>& one : done) EXPECT_EQ(one, 1);
  }
  EXPECT_TRUE(ParallelFor(0, 2, Never, [](size_t) { return absl::InternalError("none"); }).ok());
}

TEST(ParallelFor, StopsAtTheFirstError) {
  std::atomic<int> done = 0;
  const absl::Status status = ParallelFor(1'000'000, 1, Never, [&](size_t i) {
    ++done;
    return i == 2 ? absl::DataLossError("third") : absl::OkStatus();
  });
  EXPECT_EQ(status, absl::DataLossError("third"));
  EXPECT_EQ(done, 3);
}

TEST(ParallelFor, StopsOnRequest) {
  int asked = 0, done = 0;
  const absl::Status status = ParallelFor(
      10, 1, [&] { return ++asked > 4; },
      [&](size_t) {
        ++done;
        return absl::OkStatus();
      });
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(done, 4);
}

}  // namespace
}  // namespace fsdpd
