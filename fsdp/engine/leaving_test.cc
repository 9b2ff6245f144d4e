// Requested checkpoints, when a rank is asked to leave or every_minutes have passed. All ranks save after the
// same step; otherwise rank 0 would not find their files. The checkpoint has the state of that step.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <memory>

#include "base/clock.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/engine/departure.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};

constexpr int kSteps = 12;
constexpr auto kLong = absl::Hours(1);

v1::JobSpec Plain(int world) {
  v1::JobSpec job = Over(TestJob(), kParams, world);
  job.mutable_train()->set_steps(kSteps);
  return job;
}

v1::JobSpec Saving(int world, const std::string& dir) {
  v1::JobSpec job = Plain(world);
  job.mutable_checkpoint()->set_dir(dir);
  return job;
}

std::vector<int64_t> StepsIn(const std::string& dir) {
  const auto found = ListCheckpoints(dir);
  EXPECT_TRUE(found.ok()) << found.status();
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& each : *found) {
    EXPECT_TRUE(each.committed) << each.path;
    steps.push_back(each.step);
  }
  return steps;
}

// The step after which each rank is asked to leave; 0: never.
class Told {
 public:
  Told(std::vector<int64_t> after, absl::Duration time) : after_(std::move(after)), time_(time) {
    for (size_t rank = 0; rank < after_.size(); ++rank) departures_.push_back(std::make_unique<Departure>());
  }

  absl::Status Run(const v1::JobSpec& job, bool ahead) {
    const auto plan = AcceptedPlan(job);
    if (!plan.ok()) return plan.status();
    LocalJobOptions options;
    options.run_ahead_on_cpu = ahead;
    options.label.job = "job";
    for (const auto& departure : departures_) options.departures.push_back(departure.get());
    options.on_rank_step = [this](int rank, const v1::StepReport& report) {
      if (report.step() == after_[rank]) departures_[rank]->LeaveWithin(time_);
    };
    return RunLocalJob(*plan, options).status();
  }

 private:
  const std::vector<int64_t> after_;
  const absl::Duration time_;
  std::vector<std::unique_ptr<Departure>> departures_;
};

// The steps after `saved` are those of an uninterrupted run.
void ExpectContinues(const LocalJobResult& whole, v1::JobSpec job, const std::string& path, int64_t saved) {
  job.clear_checkpoint();
  job.mutable_checkpoint()->set_load(path);
  const LocalJobResult resumed = Train(job);
  LocalJobResult rest = whole;
  for (auto& reports : rest.reports) reports.erase(reports.begin(), reports.begin() + saved);
  ExpectSame(rest, resumed, 0);
}

// A step carries the request; the first step submitted after its result saves.
int64_t SavedAfter(int64_t told_after, bool ahead) { return told_after + (ahead ? 4 : 2); }

TEST(Leaving, OneRequestSavesOnAllRanks) {
  for (const int world : {1, 2, 3, 4}) {
    const LocalJobResult whole = Train(Plain(world));
    for (int rank = 0; rank < world; ++rank) {
      for (const bool ahead : {false, true}) {
        const int64_t told = 1 + (3 * world + 2 * rank) % 6, saved = SavedAfter(told, ahead);
        SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << world << ", told after step " << told
                                        << (ahead ? ", ahead" : ""));
        const TempDir dir;
        const v1::JobSpec job = Saving(world, dir.path());
        std::vector<int64_t> after(world);
        after[rank] = told;
        EXPECT_EQ(Told(after, kLong).Run(job, ahead),
                  absl::CancelledError(absl::StrCat("left after step ", saved, ", which is saved")));
        ASSERT_THAT(StepsIn(dir.path()), ElementsAre(saved));
        ExpectContinues(whole, job, CheckpointPath(dir.path(), saved), saved);
      }
    }
  }
}

// As on several nodes, which receive the request one after the other.
TEST(Leaving, LaterRequestsLeaveWithTheFirst) {
  for (const bool ahead : {false, true}) {
    for (const std::vector<int64_t>& after : {std::vector<int64_t>{3, 3, 3}, {4, 3, 5}, {5, 6, 3}}) {
      const TempDir dir;
      const absl::Status status = Told(after, kLong).Run(Saving(3, dir.path()), ahead);
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_THAT(StepsIn(dir.path()), ElementsAre(SavedAfter(3, ahead)));
    }
  }
}

TEST(Leaving, UsesAScheduledCheckpoint) {
  const TempDir dir;
  v1::JobSpec job = Saving(2, dir.path());
  job.mutable_checkpoint()->set_every_steps(3);
  EXPECT_EQ(Told({0, 3}, kLong).Run(job, /*ahead=*/false),
            absl::CancelledError("left after step 3, which is saved"));
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(3));
}

TEST(Leaving, LeavesImmediatelyWithoutTime) {
  const TempDir dir;
  const absl::Status status = Told({0, 4}, absl::ZeroDuration()).Run(Saving(2, dir.path()), /*ahead=*/false);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("left after step 4 without saving it: "));
  EXPECT_THAT(StepsIn(dir.path()), IsEmpty());
}

TEST(Leaving, LeavesImmediatelyIfNothingIsSaved) {
  EXPECT_EQ(Told({4, 4}, kLong).Run(Plain(2), /*ahead=*/false), absl::CancelledError("left after step 4"));
}

TEST(Leaving, FailedSaveDoesNotBlock) {
  const TempDir dir;
  v1::JobSpec job = Saving(2, dir.path());
  const auto plan = AcceptedPlan(job);
  ASSERT_TRUE(plan.ok());
  std::array<Departure, 2> departures;
  LocalJobOptions options;
  options.departures = {&departures[0], &departures[1]};
  options.on_rank_step = [&](int rank, const v1::StepReport& report) {
    if (report.step() != 3) return;
    // A file in the place of the directory that rank 0 would create.
    if (rank == 0) std::ofstream(CheckpointPath(dir.path(), 5)) << "in the way";
    departures[rank].LeaveWithin(kLong);
  };
  const absl::Status status = RunLocalJob(*plan, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("left after step 5, whose checkpoint was not written: "));
}

TEST(Leaving, SavesEveryMinutes) {
  const LocalJobResult whole = Train(Plain(2));
  for (const bool ahead : {false, true}) {
    const TempDir dir;
    FakeClock clock;
    v1::JobSpec job = Saving(2, dir.path());
    job.mutable_checkpoint()->set_every_minutes(1);
    job.mutable_checkpoint()->set_keep_last(10);
    LocalJobOptions options;
    options.run_ahead_on_cpu = ahead;
    options.clock = &clock;
    options.on_step = [&clock](const v1::StepReport&) {
      clock.Advance(absl::Seconds(30));
      return absl::OkStatus();
    };
    const LocalJobResult result = Train(job, options);
    ExpectSame(whole, result, 0);
    if (ahead) {
      EXPECT_THAT(StepsIn(dir.path()), ElementsAre(12, 10, 6));
    } else {
      EXPECT_THAT(StepsIn(dir.path()), ElementsAre(12, 10, 7, 4));
    }
  }
}

}  // namespace
}  // namespace fsdpd
