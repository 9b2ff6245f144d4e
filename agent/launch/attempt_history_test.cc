#include "agent/launch/attempt_history.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdpd {
namespace {

class AttemptHistoryTest : public testing::Test {
 protected:
  std::set<std::string> running_;
  AttemptHistory history_{3, [this](const std::string& job) { return running_.count(job) != 0; }};
};

TEST_F(AttemptHistoryTest, ReturnsNewestAttemptOfAJob) {
  EXPECT_EQ(history_.Newest("a"), std::nullopt);
  history_.Take({"a", 2});
  history_.Take({"a", 1});
  EXPECT_EQ(history_.Newest("a"), 2);
}

TEST_F(AttemptHistoryTest, ForgetsTheOldestJob) {
  for (const char* job : {"z", "m", "a", "b"}) history_.Take({job, 1});
  EXPECT_EQ(history_.Newest("z"), std::nullopt);
  for (const char* job : {"m", "a", "b"}) EXPECT_EQ(history_.Newest(job), 1);
}

TEST_F(AttemptHistoryTest, RepeatedJobIsRecent) {
  for (const char* job : {"a", "b", "c"}) history_.Take({job, 1});
  history_.Take({"a", 2});
  history_.Take({"d", 1});
  EXPECT_EQ(history_.Newest("b"), std::nullopt);
  EXPECT_EQ(history_.Newest("a"), 2);
}

TEST_F(AttemptHistoryTest, KeepsRunningJobsBeyondTheLimit) {
  running_ = {"a", "b", "c", "d"};
  for (const char* job : {"a", "b", "c", "d"}) history_.Take({job, 1});
  for (const char* job : {"a", "b", "c", "d"}) EXPECT_EQ(history_.Newest(job), 1);
  running_ = {"a"};
  history_.Take({"e", 1});
  for (const char* job : {"a", "d", "e"}) EXPECT_EQ(history_.Newest(job), 1) << job;
  for (const char* job : {"b", "c"}) EXPECT_EQ(history_.Newest(job), std::nullopt) << job;
}

TEST_F(AttemptHistoryTest, LastReturnsMostRecentJobs) {
  EXPECT_TRUE(history_.Last(2).empty());
  for (const char* job : {"a", "b", "c"}) history_.Take({job, 1});
  history_.Take({"a", 4});
  EXPECT_EQ(history_.Last(2), (std::vector<AttemptId>{{"a", 4}, {"c", 1}}));
  EXPECT_EQ(history_.Last(9).size(), 3u);
}

}  // namespace
}  // namespace fsdpd
