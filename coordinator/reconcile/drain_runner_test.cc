#include "coordinator/reconcile/drain_runner.h"

#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DrainRunnerTest : public ReconcileParts {
 protected:
  void SetUp() override { Attach("a"); }
  absl::Status Start(bool force = false, const std::string& reason = "new disk") {
    return drains_.Start("a", reason, /*grace_ms=*/60'000, force);
  }
  // Date at which the node was found to be empty; 0: it is not.
  int64_t EmptySince() { return cordons_.Find("a").value_or(v1::Cordon()).drain().empty_unix_nanos(); }
  v1::Job WithoutCheckpoints(const std::string& id) {
    v1::Job job = QueuedJob(id);
    job.mutable_spec()->clear_checkpoint();
    return job;
  }
  void EndRanks(LiveJob* live) { book_.Find(live->job)->TakeStopped("a"); }

  DrainRunner drains_{{&table_, &presence_, &book_, &slots_, &cordons_, &clock_}};
};

TEST_F(DrainRunnerTest, RefusesToLoseProgressUnlessForced) {
  Run(WithoutCheckpoints("j"), "a");
  const absl::Status refused = Start();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("j writes no checkpoints"));
  EXPECT_FALSE(cordons_.Find("a").has_value());
  EXPECT_TRUE(Start(/*force=*/true).ok());
}

TEST_F(DrainRunnerTest, JobSavesAndResumesElsewhere) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  ASSERT_TRUE(Start().ok());
  drains_.Advance();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_PAUSING);
  EXPECT_TRUE(Stored("j").pause().resumes_automatically());
  EXPECT_EQ(Stored("j").pause().drained_from(), "a");
  const std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_TRUE(stops[0].save());
  EXPECT_EQ(stops[0].grace_ms(), 60'000);
  EXPECT_EQ(EmptySince(), 0);
  EndRanks(live);
  drains_.Advance();
  EXPECT_EQ(EmptySince(), absl::ToUnixNanos(clock_.Wall()));
}

TEST_F(DrainRunnerTest, JobThatCannotSaveStaysUnlessForced) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  live->job.mutable_failed_checkpoint()->set_step(7);
  ASSERT_TRUE(Start().ok());
  drains_.Advance();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(StopsTo("a"), IsEmpty());
  ASSERT_TRUE(Start(/*force=*/true).ok());
  drains_.Advance();
  const std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_FALSE(stops[0].save());
}

TEST_F(DrainRunnerTest, JobOnAnotherNodeStays) {
  Attach("b");
  LiveJob* live = Run(QueuedJob("j"), "b");
  ASSERT_TRUE(Start().ok());
  drains_.Advance();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_RUNNING);
}

TEST_F(DrainRunnerTest, LostNodeIsNotEmpty) {
  Settle();
  Lose("a");
  ASSERT_TRUE(Start().ok());
  drains_.Advance();
  EXPECT_EQ(EmptySince(), 0);
}

TEST_F(DrainRunnerTest, RepeatedDrainOfEmptyNodeChangesOnlyItsReason) {
  ASSERT_TRUE(Start().ok());
  drains_.Advance();
  const int64_t empty = EmptySince();
  Advance(absl::Seconds(5));
  ASSERT_TRUE(Start(/*force=*/false, "new GPU").ok());
  EXPECT_EQ(EmptySince(), empty);
  EXPECT_EQ(cordons_.Find("a")->reason(), "new GPU");
}

// Agents also list ranks that have ended: the stored state turns out to be right.
TEST_F(DrainRunnerTest, RanksThatHadEndedMakeNoEvents) {
  ASSERT_TRUE(Start().ok());
  drains_.Advance();
  const int64_t empty = EmptySince();
  book_.AddLeftover({"j", 1}, "a", {1000, "ended"}, /*placed=*/true, absl::InfiniteFuture());
  drains_.OnRanksFound("a");
  EXPECT_EQ(EmptySince(), 0);
  Advance(absl::Seconds(5));
  drains_.Advance();
  book_.Find(AttemptRef{"j", 1})->TakeStopped("a");
  drains_.Advance();
  EXPECT_EQ(EmptySince(), empty);
  EXPECT_THAT(EventsOf("a"), Contains(v1::EVENT_KIND_NODE_DRAINED).Times(1));
}

TEST_F(DrainRunnerTest, RanksThatRemainReopenTheDrain) {
  ASSERT_TRUE(Start().ok());
  drains_.Advance();
  book_.AddLeftover({"j", 1}, "a", {1000, "ended"}, /*placed=*/true, absl::InfiniteFuture());
  drains_.OnRanksFound("a");
  Advance(absl::Seconds(14));
  drains_.Advance();
  EXPECT_THAT(EventsOf("a"), Contains(v1::EVENT_KIND_DRAINING).Times(1));
  Advance(absl::Seconds(1));
  drains_.Advance();
  EXPECT_THAT(EventsOf("a"), Contains(v1::EVENT_KIND_DRAINING).Times(2));
  EXPECT_EQ(store_->Cordons().value().at("a").drain().empty_unix_nanos(), 0);
}

}  // namespace
}  // namespace fsdpd
