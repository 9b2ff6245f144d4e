#include "agent/hang/no_progress.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

constexpr int64_t kGigabyte = 1'000'000'000;

LanePlace At(int64_t step, int64_t instruction, bool inside, bool evaluation = false) {
  LanePlace place;
  place.lane = 1;
  place.lane_name = "gather";
  place.exchanges = true;
  place.at = {step, instruction, evaluation, inside};
  place.instruction = "Gather layer.3";
  return place;
}

class NoProgressTest : public testing::Test {
 protected:
  NoProgressTest() { no_progress_.Restart(now_); }

  // Advances by one second and looks at the rank.
  std::optional<v1::RankNoProgress> Second(v1::ProcessState process = v1::PROCESS_STATE_LIVE) {
    now_ += absl::Seconds(1);
    no_progress_.Poll(page_, process, now_);
    return no_progress_.TakeReport(now_);
  }
  // Expects no report for this many seconds.
  void Quiet(int seconds) {
    for (int i = 0; i < seconds; ++i) ASSERT_FALSE(Second().has_value()) << "after " << i << " s";
  }
  void Trains(double step_seconds) {
    page_.phase = FlightPhase::kTraining;
    page_.lanes = {At(7, 3, /*inside=*/true)};
    v1::StepReport report;
    report.set_step_seconds(step_seconds);
    for (int i = 0; i < 5; ++i) no_progress_.AddStep(report);
    Quiet(1);
  }

  absl::Time now_ = absl::FromUnixSeconds(5000);
  FlightState page_;
  NoProgress no_progress_{{absl::Seconds(30), /*load_bytes=*/12 * kGigabyte, /*save_bytes=*/12 * kGigabyte,
                           /*export_bytes=*/96 * kGigabyte}};
};

TEST_F(NoProgressTest, ReportsABlockedStepAfter30SecondsAndThenEvery5) {
  Trains(0.2);
  Quiet(30);
  const std::optional<v1::RankNoProgress> news = Second();
  ASSERT_TRUE(news.has_value());
  EXPECT_EQ(news->no_progress_ms(), 31000);
  EXPECT_EQ(news->limit_ms(), 30000);
  EXPECT_EQ(news->phase(), v1::RANK_PHASE_TRAINING);
  EXPECT_EQ(news->process(), v1::PROCESS_STATE_LIVE);
  EXPECT_EQ(news->position(), "step 7: gather in Gather layer.3");
  ASSERT_EQ(news->lanes_size(), 1);
  EXPECT_TRUE(news->lanes(0).exchanges() && news->lanes(0).running());
  EXPECT_EQ(news->lanes(0).instruction(), 3);
  Quiet(4);
  EXPECT_EQ(Second()->no_progress_ms(), 36000);
}

TEST_F(NoProgressTest, SlowStepIsNotReportedWhileALaneMoves) {
  Trains(0.2);
  for (int instruction = 4; instruction < 20; ++instruction) {
    Quiet(29);
    page_.lanes = {At(7, instruction, /*inside=*/true)};
    Quiet(1);
  }
}

TEST_F(NoProgressTest, InstructionEndsAndMessagesAreProgress) {
  Trains(0.2);
  Quiet(29);
  page_.lanes = {At(7, 3, /*inside=*/false)};
  Quiet(30);
  no_progress_.OnMessage(now_);
  Quiet(30);
  EXPECT_TRUE(Second().has_value());
}

TEST_F(NoProgressTest, ReportsResumedProgressOnce) {
  Trains(0.2);
  Quiet(30);
  ASSERT_TRUE(Second().has_value());
  page_.lanes = {At(7, 4, /*inside=*/true)};
  EXPECT_EQ(Second()->no_progress_ms(), 0);
  Quiet(30);
}

TEST_F(NoProgressTest, LimitIsThreeMedianStepTimes) {
  Trains(20);
  Quiet(60);
  EXPECT_TRUE(Second().has_value());
}

TEST_F(NoProgressTest, OneSlowStepDoesNotChangeTheLimit) {
  Trains(1);
  v1::StepReport slow;
  slow.set_step_seconds(1000);
  no_progress_.AddStep(slow);
  EXPECT_EQ(no_progress_.limit(), absl::Seconds(30));
}

TEST_F(NoProgressTest, PhasesHaveTheirOwnLimits) {
  EXPECT_EQ(no_progress_.limit(), absl::Minutes(10));  // Starting.
  const auto limit_in = [&](FlightPhase phase) {
    page_.phase = phase;
    Second();
    return no_progress_.limit();
  };
  EXPECT_EQ(limit_in(FlightPhase::kTraining), absl::Minutes(10)) << "kernels are chosen, graphs are captured";
  EXPECT_EQ(limit_in(FlightPhase::kLoading), absl::Minutes(20)) << "12 GB at 20 MB/s, and what servers take";
  EXPECT_EQ(limit_in(FlightPhase::kSaving), absl::Minutes(20));
  EXPECT_EQ(limit_in(FlightPhase::kEnding), absl::Minutes(90));
  Trains(0.2);
  EXPECT_EQ(limit_in(FlightPhase::kReading), absl::Minutes(10)) << "servers of files fail over";
  EXPECT_EQ(limit_in(FlightPhase::kSaving), absl::Minutes(20));
  page_.lanes = {At(7, 3, /*inside=*/false, /*evaluation=*/true)};
  EXPECT_EQ(limit_in(FlightPhase::kTraining), absl::Minutes(2));
}

TEST_F(NoProgressTest, StoppedProcessIgnoresThePhaseLimit) {
  page_.phase = FlightPhase::kSaving;
  Quiet(1);
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(Second(v1::PROCESS_STATE_STOPPED).has_value());
  EXPECT_EQ(Second(v1::PROCESS_STATE_STOPPED)->process(), v1::PROCESS_STATE_STOPPED);
  EXPECT_EQ(Second()->no_progress_ms(), 0) << "it was continued, and has its phase's time";
}

TEST_F(NoProgressTest, SuspensionOfTheAgentRestartsTheClock) {
  Trains(0.2);
  Quiet(20);
  now_ += absl::Hours(1);
  no_progress_.Restart(now_);
  Quiet(30);
  EXPECT_TRUE(Second().has_value());
}

TEST_F(NoProgressTest, WithoutFlightRecorderOnlyMessagesCount) {
  for (int i = 0; i < 600; ++i) {
    now_ += absl::Seconds(1);
    no_progress_.Poll(absl::NotFoundError("no flight recorder"), v1::PROCESS_STATE_LIVE, now_);
    EXPECT_FALSE(no_progress_.TakeReport(now_).has_value());
  }
  now_ += absl::Seconds(1);
  EXPECT_EQ(no_progress_.TakeReport(now_)->phase(), v1::RANK_PHASE_STARTING);
}

TEST_F(NoProgressTest, TextShowsTimePerLane) {
  Trains(0.2);
  Quiet(12);
  EXPECT_EQ(no_progress_.Text(now_),
            "no progress for 12s (limit 30s while training); the process is live\n"
            "lane gather in Gather layer.3 of step 7, instruction 3, for 12s\n");
}

TEST(ProgressBudget, FollowsSpecAndMemoryPlan) {
  v1::Launch launch;
  launch.set_world_size(4);
  for (const char* name : {"main_params", "optimizer", "activations"}) {
    auto* component = launch.mutable_memory_plan()->add_components();
    component->set_name(name);
    component->set_bytes(100);
  }
  EXPECT_EQ(ProgressBudgetOf(launch)->step, absl::Seconds(30));
  EXPECT_EQ(ProgressBudgetOf(launch)->save_bytes, 200);
  EXPECT_EQ(ProgressBudgetOf(launch)->load_bytes, 200);
  EXPECT_EQ(ProgressBudgetOf(launch)->export_bytes, 800);
  launch.mutable_spec()->mutable_model()->mutable_package();
  EXPECT_EQ(ProgressBudgetOf(launch)->load_bytes, 800) << "initial values of the whole model are unpacked";
  launch.mutable_spec()->mutable_restart()->set_hang_seconds(7);
  EXPECT_EQ(ProgressBudgetOf(launch)->step, absl::Seconds(7));
  launch.mutable_spec()->mutable_restart()->set_hang_seconds(0);
  EXPECT_FALSE(ProgressBudgetOf(launch).has_value());
}

TEST(ProcessStateOf, MapsKernelStates) {
  for (const char state : {'R', 'S', 'I'}) EXPECT_EQ(ProcessStateOf(state), v1::PROCESS_STATE_LIVE);
  for (const char state : {'T', 't'}) EXPECT_EQ(ProcessStateOf(state), v1::PROCESS_STATE_STOPPED);
  EXPECT_EQ(ProcessStateOf('D'), v1::PROCESS_STATE_BLOCKED);
  for (const char state : {'Z', 'X'}) EXPECT_EQ(ProcessStateOf(state), v1::PROCESS_STATE_GONE);
  EXPECT_EQ(ProcessStateOf('?'), v1::PROCESS_STATE_UNSPECIFIED);
}

}  // namespace
}  // namespace fsdpd
