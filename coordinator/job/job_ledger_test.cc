#include "coordinator/job/job_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "base/seeds.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pair;

v1::Job NewJob(absl::Time now) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_create_unix_nanos(absl::ToUnixNanos(now));
  return job;
}

class JobLedgerTest : public ::testing::Test {
 protected:
  void Wait(double seconds) { now_ += absl::Seconds(seconds); }
  void On(JobEvent event) { ASSERT_TRUE(Apply(event, "", now_, &job_).ok()) << NameOf(event); }
  void Run() {
    On(JobEvent::kLaunch);
    On(JobEvent::kReady);
  }
  // A step that takes `wall` seconds, of which its own time is `seconds`.
  void Step(int64_t number, double wall, double seconds, double exposed = 0) {
    Wait(wall);
    const v1::StepReport before = job_.last_step();
    v1::StepReport step;
    step.set_step(number);
    step.set_step_seconds(seconds);
    step.set_exposed_seconds(exposed);
    ASSERT_TRUE(TakeStep(step, &job_));
    MoveStep(before, step, now_, &job_);
  }
  void Restored(int64_t step, double seconds) {
    job_.mutable_restored()->set_step(step);
    job_.mutable_restored()->set_seconds(seconds);
    MoveLoad(job_.restored(), now_, &job_);
  }
  // Causes above zero, by name.
  std::map<std::string, double> Now() {
    AdvanceLedger(now_, &job_);
    std::map<std::string, double> some;
    for (const LedgerShare& share : SharesOf(job_.ledger())) {
      if (share.seconds > 1e-9) some[std::string(share.name)] = share.seconds;
    }
    return some;
  }
  static auto Is(const char* name, double seconds) { return Pair(name, DoubleNear(seconds, 1e-6)); }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  v1::Job job_ = NewJob(now_);
};

TEST_F(JobLedgerTest, TimeGoesToTheCurrentState) {
  Wait(5);
  On(JobEvent::kNote);
  Wait(1);
  On(JobEvent::kPreflight);
  Wait(7);
  On(JobEvent::kLaunch);
  Wait(11);
  On(JobEvent::kReady);
  Wait(13);
  On(JobEvent::kPause);
  Wait(2);
  On(JobEvent::kRanksGone);
  Wait(100);
  EXPECT_THAT(Now(), ElementsAre(Is("other", 13), Is("pause", 100), Is("preflight", 7), Is("queue", 6),
                                 Is("start", 11), Is("stop", 2)));
}

TEST_F(JobLedgerTest, ReportMovesItsStepOutOfOther) {
  Run();
  Step(1, 3, 2.5, 0.5);
  Step(2, 3, 3, 1);
  Wait(1);
  EXPECT_THAT(Now(), ElementsAre(Is("exposed", 1.5), Is("other", 1.5), Is("step", 4)));
}

TEST_F(JobLedgerTest, UnreportedStepsAreLikeTheNext) {
  Run();
  Step(1, 2, 2);
  Step(5, 8, 2, 0.5);
  EXPECT_THAT(Now(), ElementsAre(Is("exposed", 2), Is("step", 8)));
}

TEST_F(JobLedgerTest, CountsDelayedReportsSeparately) {
  Run();
  Step(1, 30, 10);
  Step(2, 0, 10);
  Step(3, 0, 10);
  EXPECT_THAT(Now(), ElementsAre(Is("step", 30)));
}

TEST_F(JobLedgerTest, ReportMovesAtMostTheAvailableTime) {
  Run();
  Step(1, 2, 50, 40);
  EXPECT_THAT(Now(), ElementsAre(Is("exposed", 2)));
}

TEST_F(JobLedgerTest, LostStepsAreReplayUntilNewOnes) {
  Run();
  for (int step = 1; step <= 6; ++step) Step(step, 1, 1);
  On(JobEvent::kFail);
  Wait(4);
  On(JobEvent::kRetry);
  Wait(2);
  On(JobEvent::kNote);
  Wait(1);
  On(JobEvent::kLaunch);
  Wait(9);
  Restored(4, 3);
  On(JobEvent::kReady);
  // 5 and 6 again, 7 and 8 for the first time.
  Step(8, 4, 1);
  EXPECT_THAT(Now(),
              ElementsAre(Is("load", 3), Is("replay", 2), Is("restart", 7), Is("start", 6), Is("step", 8)));
}

TEST_F(JobLedgerTest, HangBeforeReadyIsTakenFromStart) {
  On(JobEvent::kLaunch);
  Wait(60);
  On(JobEvent::kFail);
  v1::Job::Hang hang;
  hang.set_no_progress_ms(55'000);
  MoveHang(hang, &job_);
  Wait(3);
  EXPECT_THAT(Now(), ElementsAre(Is("hang", 55), Is("restart", 3), Is("start", 5)));
}

TEST_F(JobLedgerTest, HangHasItsLengthAtTheEndOfTheAttempt) {
  Run();
  Step(1, 1, 1);
  Wait(60);
  On(JobEvent::kFail);
  v1::Job::Hang hang;
  hang.set_no_progress_ms(55'000);
  MoveHang(hang, &job_);
  Wait(3);
  EXPECT_THAT(Now(), ElementsAre(Is("hang", 55), Is("other", 5), Is("restart", 3), Is("step", 1)));
}

TEST_F(JobLedgerTest, SaveIsTheTimeThatBlockedTraining) {
  Run();
  Wait(10);
  v1::SavedCheckpoint saved;
  saved.set_seconds(8);
  saved.set_stall_seconds(0.5);
  MoveSave(saved, now_, &job_);
  On(JobEvent::kPause);
  Wait(6);
  saved.set_stall_seconds(10);  // While its ranks exit.
  MoveSave(saved, now_, &job_);
  EXPECT_THAT(Now(), ElementsAre(Is("save", 10.5), Is("stop", 5.5)));
}

TEST_F(JobLedgerTest, LateEndRemovesTheTimeAfterIt) {
  Run();
  Step(1, 5, 5);
  Wait(20);
  On(JobEvent::kFinish);
  job_.set_end_unix_nanos(absl::ToUnixNanos(now_ - absl::Seconds(18)));
  EndLedger(absl::FromUnixNanos(job_.end_unix_nanos()), &job_);
  Wait(1000);
  EXPECT_THAT(Now(), ElementsAre(Is("other", 2), Is("step", 5)));
}

TEST_F(JobLedgerTest, EndBeforeAdmissionLeavesAnEmptyLedger) {
  const int64_t admitted = job_.create_unix_nanos();
  Run();
  Wait(10);
  On(JobEvent::kNote);
  EndLedger(now_ - absl::Hours(4), &job_);
  EXPECT_NEAR(SecondsOf(job_.ledger()), 0, 1e-6);
  EXPECT_NEAR(static_cast<double>(job_.ledger().until_unix_nanos() - admitted) / 1e9, 0, 1e-3);
}

TEST_F(JobLedgerTest, TimeBeforeARetryIsPause) {
  Run();
  Wait(5);
  On(JobEvent::kFail);
  On(JobEvent::kGiveUp);
  EndLedger(absl::FromUnixNanos(job_.end_unix_nanos()), &job_);
  Wait(40);
  On(JobEvent::kUserRetry);
  Wait(3);
  EXPECT_THAT(Now(), ElementsAre(Is("other", 5), Is("pause", 40), Is("queue", 3)));
}

TEST_F(JobLedgerTest, ClockSetBackChangesNothing) {
  Run();
  Wait(10);
  On(JobEvent::kNote);
  Wait(-3600);
  On(JobEvent::kNote);
  EXPECT_THAT(Now(), ElementsAre(Is("other", 10)));
}

TEST_F(JobLedgerTest, TimeUnderAnOlderReleaseIsOther) {
  Run();
  job_.clear_ledger();
  Wait(10);
  On(JobEvent::kFail);
  Wait(1);
  EXPECT_THAT(Now(), ElementsAre(Is("other", 10), Is("restart", 1)));
}

// Random lifetimes, with wrong, late or repeated reports, and a date that is set.
TEST_F(JobLedgerTest, CausesAddUpToTheTimeSinceAdmission) {
  for (int seed = 0; seed < Seeds(300); ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](double most) { return std::uniform_real_distribution<>(0, most)(random); };
    absl::Time newest = now_;
    v1::Job job = NewJob(now_);
    for (int i = 0; i < 200; ++i) {
      now_ += absl::Seconds(draw(1) < 0.05 ? -draw(100) : draw(20));
      const auto event = static_cast<JobEvent>(random() % kJobEvents);
      v1::Job next = job;
      if (draw(1) < 0.5) {
        const v1::StepReport before = job.last_step();
        v1::StepReport step;
        step.set_step(before.step() + static_cast<int64_t>(random() % 4));
        step.set_step_seconds(draw(30));
        step.set_exposed_seconds(draw(60));
        MoveStep(before, step, now_, &next);
        *next.mutable_last_step() = step;
        v1::SavedCheckpoint saved;
        saved.set_stall_seconds(draw(10));
        MoveSave(saved, now_, &next);
        v1::RestoredCheckpoint restored;
        restored.set_seconds(draw(10));
        MoveLoad(restored, now_, &next);
        newest = std::max(newest, now_);
      } else if (Apply(event, "", now_, &next).ok()) {
        newest = std::max(newest, now_);
        v1::Job::Hang hang;
        hang.set_no_progress_ms(static_cast<int64_t>(draw(1e5)));
        if (event == JobEvent::kFail) MoveHang(hang, &next);
        if (IsEnded(next.state())) {
          const absl::Time ended = newest - absl::Seconds(draw(30));
          next.set_end_unix_nanos(std::max(job.create_unix_nanos(), absl::ToUnixNanos(ended)));
          EndLedger(absl::FromUnixNanos(next.end_unix_nanos()), &next);
          newest = absl::FromUnixNanos(next.end_unix_nanos());
        }
      } else if (IsEnded(job.state())) {
        continue;
      }
      job = next;
      const double wall = absl::ToDoubleSeconds(newest - absl::FromUnixNanos(job.create_unix_nanos()));
      ASSERT_NEAR(SecondsOf(job.ledger()), wall, 1e-5) << "seed " << seed << " i " << i;
      for (const LedgerShare& share : SharesOf(job.ledger())) ASSERT_GE(share.seconds, 0) << share.name;
    }
  }
}

}  // namespace
}  // namespace fsdpd
