#include "agent/link/undelivered.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

v1::AgentMessage ExitOf(int rank) {
  v1::AgentMessage message;
  message.mutable_rank()->set_job_id("train-k3x9q2");
  message.mutable_rank()->set_rank(rank);
  message.mutable_rank()->mutable_exit()->set_drained(true);
  return message;
}

class UndeliveredTest : public ::testing::Test {
 protected:
  std::vector<int> RanksTaken(const std::string& node = "node-0") {
    std::vector<int> ranks;
    for (const v1::AgentMessage& message : TakeUndelivered(dir_.path(), node)) {
      EXPECT_TRUE(message.rank().exit().drained());
      ranks.push_back(message.rank().rank());
    }
    return ranks;
  }
  void Keep(const std::vector<v1::AgentMessage>& messages) {
    const absl::Status kept = StoreUndelivered(dir_.path(), "node-0", messages);
    EXPECT_TRUE(kept.ok()) << kept;
  }

  TempDir dir_;
};

TEST_F(UndeliveredTest, IsTakenOnceAndInOrder) {
  EXPECT_EQ(RanksTaken(), std::vector<int>{}) << "nobody left anything";
  Keep({ExitOf(3)});
  Keep({ExitOf(1), ExitOf(0)});
  EXPECT_EQ(RanksTaken(), (std::vector<int>{1, 0}));
  EXPECT_EQ(RanksTaken(), std::vector<int>{});
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

// Regression: an exit that an agent of 0.1 had stored was lost, and the finished job failed.
TEST_F(UndeliveredTest, TakesTheFileOfRelease01First) {
  Keep({ExitOf(2)});
  std::filesystem::rename(dir_.File("undelivered"), dir_.File("untold"));
  Keep({ExitOf(1)});
  EXPECT_EQ(RanksTaken(), (std::vector<int>{2, 1}));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(UndeliveredTest, EmptyListRemovesTheFile) {
  Keep({});
  Keep({ExitOf(1)});
  Keep({});
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(UndeliveredTest, IgnoresMessagesOfAnotherNode) {
  Keep({ExitOf(1)});
  EXPECT_EQ(RanksTaken("node-1"), std::vector<int>{});
}

TEST_F(UndeliveredTest, IgnoresDamagedFiles) {
  Keep({ExitOf(1), ExitOf(0)});
  const std::string path = dir_.File("undelivered");
  const auto size = std::filesystem::file_size(path);
  for (uintmax_t bytes = 0; bytes < size; ++bytes) {
    Keep({ExitOf(1), ExitOf(0)});
    std::filesystem::resize_file(path, bytes);
    EXPECT_LE(RanksTaken().size(), 1u) << bytes;
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  std::ofstream(path) << "node-0\n" << std::string(100, '\xff');
  EXPECT_EQ(RanksTaken(), std::vector<int>{});
}

TEST_F(UndeliveredTest, ReportsUnwritableDirectory) {
  const absl::Status kept = StoreUndelivered(dir_.File("absent"), "node-0", {ExitOf(1)});
  EXPECT_FALSE(kept.ok());
  EXPECT_NE(kept.message().find("absent/undelivered"), std::string::npos) << kept;
}

}  // namespace
}  // namespace fsdpd
