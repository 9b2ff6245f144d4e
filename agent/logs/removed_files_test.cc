#include "agent/logs/removed_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::Contains;
using ::testing::Not;

// A full record dropped the newest removals, of which a reader asks first.
TEST(RemovedFiles, AFullRecordDropsTheOldestRemovals) {
  const TempDir dir;
  const std::filesystem::path job = std::filesystem::path(dir.path()) / "a-job";
  std::filesystem::create_directory(job);
  const int attempts = 40;
  for (int attempt = 1; attempt <= attempts; ++attempt) {
    std::vector<std::string> files;  // 40 attempts of 2048 ranks: 1.9 MB.
    for (int rank = 0; rank < 2048; ++rank)
      files.push_back("attempt-" + std::to_string(attempt) + "/rank-" + std::to_string(rank) + ".log");
    RecordRemoval(job, files);
  }
  const auto removed = [&](int attempt) { return RanksRemoved(dir.path(), {"a-job", attempt}, ".log"); };
  EXPECT_EQ(removed(attempts).size(), 2048U);
  EXPECT_EQ(removed(attempts - 10).size(), 2048U);
  EXPECT_THAT(removed(1), Not(Contains(0)));
  EXPECT_LT(std::filesystem::file_size(job / kRemovedFiles), (1U << 20) + (1U << 17));
}

}  // namespace
}  // namespace fsdpd
