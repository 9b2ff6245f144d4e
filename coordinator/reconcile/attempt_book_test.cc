#include "coordinator/reconcile/attempt_book.h"

#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AttemptBookTest : public ReconcileParts {
 protected:
  void SetUp() override { Attach("a"); }
  void Cancel(LiveJob* live) { ASSERT_TRUE(table_.Commit(live, JobEvent::kCancel, "cancelled").ok()); }
  bool IsOpen(const std::string& job, int attempt) { return book_.Find(AttemptRef{job, attempt}) != nullptr; }
};

TEST_F(AttemptBookTest, StoresLaunchBeforeItIsSent) {
  LiveJob* live = Submit(QueuedJob("j"));
  {
    const FullDisk full;
    EXPECT_FALSE(book_.Launch(live, On({"a"}), /*backfilled=*/false).ok());
  }
  EXPECT_THAT(Sent("a"), IsEmpty());
  EXPECT_FALSE(IsOpen("j", 1));
  ASSERT_TRUE(book_.Launch(live, On({"a"}), /*backfilled=*/false).ok());
  EXPECT_EQ(Stored("j").placements(0).agent_instance(), "agent of a");
  const std::vector<v1::CoordinatorMessage> sent = Sent("a");
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].launch().attempt(), 1);
}

TEST_F(AttemptBookTest, SendsLaunchOnceTheAgentIsConnected) {
  nodes_.Detach("a", outboxes_.at("a")->stream_generation());
  LiveJob* live = Submit(QueuedJob("j"));
  ASSERT_TRUE(book_.Launch(live, On({"a"}), /*backfilled=*/false).ok());
  EXPECT_FALSE(book_.Find(live->job)->parts[0].launched);
  Attach("a");
  AttemptBook::Hosted hosted;
  EXPECT_EQ(book_.OnAttached(presence_.Find("a")->info, &hosted), 0);
  const std::vector<v1::CoordinatorMessage> sent = Sent("a");
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_TRUE(sent[0].has_launch());
}

TEST_F(AttemptBookTest, RepeatsStopUntilTheNodeConfirmsIt) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  Cancel(live);
  book_.BeginStop(book_.Find(live->job), /*grace_ms=*/0, "cancelled");
  std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].grace_ms(), 1) << "agents read 0 as their default";
  Advance(absl::Seconds(4));
  book_.AdvanceStops();
  EXPECT_THAT(StopsTo("a"), IsEmpty());
  Advance(absl::Seconds(1));
  book_.AdvanceStops();
  EXPECT_THAT(StopsTo("a"), SizeIs(1));
  book_.Find(live->job)->TakeStopped("a");
  Advance(absl::Seconds(9));
  book_.AdvanceStops();
  EXPECT_THAT(StopsTo("a"), IsEmpty());
  EXPECT_TRUE(IsOpen("j", 1)) << "the job has not taken note of the end";
  ASSERT_TRUE(table_.Commit(live, JobEvent::kRanksGone, "cancelled").ok());
  book_.AdvanceStops();
  EXPECT_FALSE(IsOpen("j", 1));
}

TEST_F(AttemptBookTest, SlotsOfExitedRanksWaitHalfAMinuteForTheirAgent) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  Cancel(live);
  AttemptFacts* facts = book_.Find(live->job);
  book_.BeginStop(facts, 1000, "cancelled");
  facts->TakeExit("a", 0, v1::RankExit(), clock_.Now(), absl::ZeroDuration());
  ASSERT_TRUE(table_.Commit(live, JobEvent::kRanksGone, "cancelled").ok());
  Advance(absl::Seconds(30));
  book_.AdvanceStops();
  EXPECT_TRUE(IsOpen("j", 1));
  EXPECT_FALSE(book_.IsIdle("a"));
  Advance(absl::Seconds(1));
  book_.AdvanceStops();
  EXPECT_FALSE(IsOpen("j", 1));
  EXPECT_TRUE(book_.IsIdle("a"));
}

TEST_F(AttemptBookTest, RanksOnLostNodeAreUnconfirmed) {
  Settle();
  LiveJob* live = Run(QueuedJob("j"), "a");
  Cancel(live);
  Lose("a");
  ASSERT_TRUE(table_.Commit(live, JobEvent::kRanksGone, "cancelled").ok());
  book_.AdvanceStops();
  EXPECT_FALSE(IsOpen("j", 1));
  presence_.Read();
  EXPECT_THAT(presence_.LostWithRanksOf("j"), ElementsAre("a"));
}

TEST_F(AttemptBookTest, LeftoverDelaysTheNextLaunchButHoldsItsNodeLonger) {
  Submit(QueuedJob("j"));
  book_.AddLeftover({"j", 1}, "a", {1000, "the attempt has ended"}, /*placed=*/true,
                    clock_.Now() + absl::Seconds(75));
  EXPECT_EQ(book_.LeftoversOf("j"), "waits until the remaining ranks of attempt 1 on a have ended");
  EXPECT_EQ(book_.LeftoversOf("k"), "");
  EXPECT_THAT(StopsTo("a"), SizeIs(1));
  Advance(absl::Seconds(75));
  EXPECT_EQ(book_.LeftoversOf("j"), "");
  EXPECT_THAT(book_.FullNodes(), ElementsAre("a")) << "its devices may be in use";
  book_.Find(AttemptRef{"j", 1})->TakeStopped("a");
  EXPECT_THAT(book_.FullNodes(), IsEmpty());
}

TEST_F(AttemptBookTest, LostNodeDelaysNoLaunch) {
  Settle();
  Submit(QueuedJob("j"));
  book_.AddLeftover({"j", 1}, "a", {1000, "the attempt has ended"}, /*placed=*/true, absl::InfiniteFuture());
  EXPECT_NE(book_.LeftoversOf("j"), "");
  Lose("a");
  EXPECT_EQ(book_.LeftoversOf("j"), "");
}

TEST_F(AttemptBookTest, NodeWithRefusedRanksIsFullUntilTheyAreKilled) {
  book_.HoldForRefused("a", clock_.Now() + absl::Seconds(12));
  EXPECT_THAT(book_.FullNodes(), ElementsAre("a"));
  Advance(absl::Seconds(12));
  EXPECT_THAT(book_.FullNodes(), IsEmpty());
}

// A job that was being cancelled 4 seconds ago with a grace of 10 seconds.
class LoadedStopTest : public AttemptBookTest {
 protected:
  std::vector<v1::Stop> StopsAfterLoad(bool failed) {
    v1::Job job = QueuedJob("j");
    job.set_state(v1::JOB_STATE_CANCELLING);
    job.set_attempt(1);
    *job.add_placements() = On({"a"}).placements[0];
    job.mutable_cancellation()->set_grace_ms(60'000);
    job.mutable_cancellation()->set_unix_nanos(absl::ToUnixNanos(clock_.Wall() - absl::Seconds(4)));
    if (failed) job.mutable_failure()->set_attempt(1);
    book_.Load(Submit(job)->job);
    return StopsTo("a");
  }
};

TEST_F(LoadedStopTest, ContinuesWithTheRemainingGrace) {
  const std::vector<v1::Stop> stops = StopsAfterLoad(/*failed=*/false);
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].grace_ms(), 56'000);
  EXPECT_TRUE(stops[0].save());
}

TEST_F(LoadedStopTest, RanksOfFailedAttemptHaveNothingToSave) {
  const std::vector<v1::Stop> stops = StopsAfterLoad(/*failed=*/true);
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].grace_ms(), kStopGraceMs);
  EXPECT_FALSE(stops[0].save());
}

}  // namespace
}  // namespace fsdpd
