#include "agent/metrics/compute_times.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

class ComputeTimesTest : public ::testing::Test {
 protected:
  std::optional<v1::ComputeTimes> Step(int rank, double seconds, const char* job = "j") {
    v1::StepReport report;
    report.set_compute_seconds(seconds);
    return times_.Take({{job, 1}, rank}, report, now_);
  }

  ComputeTimes times_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(ComputeTimesTest, ReportsEachStepOnce) {
  for (int step = 0; step < 4; ++step) {
    EXPECT_FALSE(Step(0, 1).has_value());
    EXPECT_FALSE(Step(1, 3).has_value());
  }
  now_ += kComputeTimesEvery;
  const auto word = Step(1, 3);
  ASSERT_TRUE(word.has_value());
  EXPECT_EQ(word->job_id(), "j");
  EXPECT_EQ(word->attempt(), 1);
  ASSERT_EQ(word->ranks_size(), 2);
  EXPECT_EQ(word->ranks(0).steps(), 4);
  EXPECT_EQ(word->ranks(0).seconds(), 4);
  EXPECT_EQ(word->ranks(1).rank(), 1);
  EXPECT_EQ(word->ranks(1).steps(), 5);
  EXPECT_EQ(word->ranks(1).seconds(), 15);
  now_ += kComputeTimesEvery;
  const auto next = Step(0, 2);
  ASSERT_TRUE(next.has_value());
  ASSERT_EQ(next->ranks_size(), 1) << "rank 1 made no step since";
  EXPECT_EQ(next->ranks(0).seconds(), 2);
}

TEST_F(ComputeTimesTest, SeparatesAndForgetsAttempts) {
  EXPECT_FALSE(Step(0, 1).has_value());
  EXPECT_FALSE(Step(0, 2, "other").has_value());
  times_.Forget({"j", 1});
  EXPECT_FALSE(Step(0, 7).has_value());
  now_ += kComputeTimesEvery;
  auto word = Step(0, 7);
  ASSERT_TRUE(word.has_value());
  EXPECT_EQ(word->ranks(0).seconds(), 14);
  word = Step(0, 2, "other");
  ASSERT_TRUE(word.has_value());
  EXPECT_EQ(word->job_id(), "other");
  EXPECT_EQ(word->ranks(0).seconds(), 4);
}

}  // namespace
}  // namespace fsdpd
