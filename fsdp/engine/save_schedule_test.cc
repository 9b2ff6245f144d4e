#include "fsdp/engine/save_schedule.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace fsdpd {
namespace {

Spec SpecOf(int64_t every_steps, int64_t every_minutes) {
  Spec spec;
  spec.steps = 1000;
  spec.checkpoint.dir = "/runs/1";
  spec.checkpoint.every_steps = every_steps;
  spec.checkpoint.every_minutes = every_minutes;
  return spec;
}

TEST(SaveSchedule, RequestSavesTheNextSubmittedStep) {
  const Spec spec = SpecOf(0, 0);
  const FakeClock clock;
  SaveSchedule schedule(&spec, /*keeps_time=*/false, /*start=*/0, clock.Now());
  EXPECT_FALSE(schedule.Saves(1));
  schedule.Submitted(1, false, false, clock.Now());
  schedule.Collected(1, /*asked=*/true);
  EXPECT_TRUE(schedule.Saves(2));
  schedule.Submitted(2, true, false, clock.Now());
  EXPECT_FALSE(schedule.Saves(3));
  EXPECT_EQ(schedule.newest(), 2);
}

// With run-ahead, the results of steps with a request arrive after the saving step was submitted.
TEST(SaveSchedule, AnswersEarlierRequests) {
  const Spec spec = SpecOf(0, 0);
  const FakeClock clock;
  SaveSchedule schedule(&spec, false, 0, clock.Now());
  schedule.Submitted(1, false, false, clock.Now());
  schedule.Submitted(2, false, false, clock.Now());
  schedule.Collected(1, true);
  ASSERT_TRUE(schedule.Saves(3));
  schedule.Submitted(3, true, false, clock.Now());
  schedule.Collected(2, true);
  EXPECT_FALSE(schedule.Saves(4));
  schedule.Submitted(4, false, false, clock.Now());
  schedule.Collected(3, true);
  EXPECT_FALSE(schedule.Saves(5)) << "step 3 was saved itself";
  schedule.Collected(4, true);
  EXPECT_TRUE(schedule.Saves(5)) << "somebody has asked since";
}

// If a rank decided anew at each step whether a save still fits, it would leave during one that does.
TEST(SaveSchedule, PendingRequestShortensTheWait) {
  const Spec spec = SpecOf(0, 0);
  const FakeClock clock;
  SaveSchedule schedule(&spec, false, 0, clock.Now());
  EXPECT_EQ(schedule.StepsToSave(1, 3), 3);
  schedule.Submitted(1, false, /*requests_save=*/false, clock.Now());
  EXPECT_EQ(schedule.StepsToSave(2, 3), 3);
  schedule.Submitted(2, false, /*requests_save=*/true, clock.Now());
  EXPECT_EQ(schedule.StepsToSave(3, 3), 2);
  schedule.Submitted(3, false, /*requests_save=*/true, clock.Now());
  EXPECT_EQ(schedule.StepsToSave(4, 3), 1);
  EXPECT_EQ(schedule.StepsToSave(6, 3), 1) << "one that is late";
  schedule.Submitted(4, true, /*requests_save=*/true, clock.Now());
  EXPECT_EQ(schedule.StepsToSave(5, 3), 3) << "for the next one";
}

TEST(SaveSchedule, ScheduledSaveAnswersARequest) {
  const Spec spec = SpecOf(/*every_steps=*/2, 0);
  const FakeClock clock;
  SaveSchedule schedule(&spec, false, 0, clock.Now());
  schedule.Submitted(1, false, false, clock.Now());
  ASSERT_TRUE(schedule.Saves(2));
  schedule.Submitted(2, true, false, clock.Now());
  schedule.Collected(1, true);
  EXPECT_FALSE(schedule.Saves(3));
}

TEST(SaveSchedule, RequestsAfterEveryMinutes) {
  const Spec spec = SpecOf(0, /*every_minutes=*/10);
  FakeClock clock;
  SaveSchedule schedule(&spec, /*keeps_time=*/true, 7, clock.Now());
  const SaveSchedule other(&spec, /*keeps_time=*/false, 7, clock.Now());
  clock.Advance(absl::Minutes(9));
  EXPECT_FALSE(schedule.RequestsSave(clock.Now()));
  clock.StepWall(absl::Hours(1));
  EXPECT_FALSE(schedule.RequestsSave(clock.Now())) << "somebody set the machine's time";
  clock.Advance(absl::Minutes(1));
  EXPECT_TRUE(schedule.RequestsSave(clock.Now()));
  EXPECT_FALSE(other.RequestsSave(clock.Now())) << "one rank keeps the time";
  schedule.Submitted(8, false, false, clock.Now());
  EXPECT_TRUE(schedule.RequestsSave(clock.Now())) << "until a step saves";
  schedule.Submitted(9, true, false, clock.Now());
  EXPECT_FALSE(schedule.RequestsSave(clock.Now()));
  clock.Advance(absl::Minutes(10));
  EXPECT_TRUE(schedule.RequestsSave(clock.Now()));
}

TEST(SaveSchedule, ScheduledSavesRestartTheMinutes) {
  const Spec spec = SpecOf(/*every_steps=*/5, /*every_minutes=*/10);
  FakeClock clock;
  SaveSchedule schedule(&spec, true, 0, clock.Now());
  clock.Advance(absl::Minutes(8));
  ASSERT_TRUE(schedule.Saves(5));
  schedule.Submitted(5, true, false, clock.Now());
  clock.Advance(absl::Minutes(8));
  EXPECT_FALSE(schedule.RequestsSave(clock.Now()));
}

TEST(SaveSchedule, NoRequestWithoutEveryMinutes) {
  const Spec spec = SpecOf(5, 0);
  FakeClock clock;
  const SaveSchedule schedule(&spec, true, 0, clock.Now());
  clock.Advance(absl::Hours(100));
  EXPECT_FALSE(schedule.RequestsSave(clock.Now()));
}

}  // namespace
}  // namespace fsdpd
