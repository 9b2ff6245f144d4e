// Backfill: which jobs pass a waiting job, and that none of them delays it.
#include <random>

#include "base/seeds.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Waiting = v1::Job::Waiting;

struct Wants {
  int nodes = 1;
  int ranks = 1;
  int priority = 0;
  bool preemptible = false;
  std::string project = {};
};

class ReconcilerBackfillTest : public ReconcilerCase {
 protected:
  std::string SubmitWith(const std::string& id, const Wants& wants) {
    v1::Job job;
    job.set_id(id);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++submits_);
    job.set_project(wants.project);
    job.mutable_spec()->set_priority(wants.priority);
    job.mutable_spec()->mutable_train()->set_steps(100);
    job.mutable_spec()->mutable_resources()->set_nodes(wants.nodes);
    job.mutable_spec()->mutable_resources()->set_ranks_per_node(wants.ranks);
    job.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CPU);
    job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/" + id);
    job.set_preemptible(wants.preemptible);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_->Publish(job);
    reconciler_->Submitted(job);
    reconciler_->RunOnce();
    return id;
  }
  void Settle() { Advance(options_.reattach_grace + absl::Seconds(1)); }
  Waiting WaitingOf(const std::string& id) {
    v1::Job job = Job(id);
    board_->AddWaiting(&job);
    return job.waiting();
  }
  // Ends all ranks of its newest attempt like this on all nodes, and confirms that nothing is left.
  void End(const std::string& id, bool cancelled) {
    const v1::Job job = Job(id);
    for (const v1::Job::Placement& placement : job.placements()) {
      for (int rank = 0; rank < placement.ranks(); ++rank) {
        v1::RankExit exit;
        exit.set_exit_code(cancelled ? 143 : 0);
        exit.set_cancelled(cancelled);
        ExitWith(placement.node(), id, placement.first_rank() + rank, exit, job.attempt());
      }
    }
    for (const v1::Job::Placement& placement : job.placements()) Stopped(placement.node(), id, job.attempt());
  }
  void Finish(const std::string& id) { End(id, /*cancelled=*/false); }
  // All ranks that were ordered to stop exit.
  void LetLeave() {
    for (bool again = true; again;) {
      again = false;
      for (const auto& job : board_->Live()) {
        if (job->state() != v1::JOB_STATE_PAUSING) continue;
        End(job->id(), /*cancelled=*/true);
        again = true;
      }
      reconciler_->RunOnce();
    }
  }
  static bool IsUp(v1::JobState state) {
    return state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING;
  }
};

TEST_F(ReconcilerBackfillTest, PlacesSmallJobOnNodeThatHeadCannotUse) {
  Attach("large", 2);
  Attach("small", 1);
  Settle();
  SubmitWith("one", {1, 2});
  SubmitWith("two", {1, 2});
  SubmitWith("next", {1, 1});
  SubmitWith("last", {1, 1});
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(StateOf("next"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("next").placements(0).node(), "small");
  EXPECT_FALSE(Job("next").backfilled());
  EXPECT_EQ(WaitingOf("last").code(), Waiting::CODE_QUEUE_ORDER);
  EXPECT_EQ(WaitingOf("last").queue_position(), 2);
  EXPECT_THAT(WaitingOf("last").remedy(), HasSubstr("--preemptible"));
}

TEST_F(ReconcilerBackfillTest, PlacesSmallJobNextToReservation) {
  Attach("a", 4);
  Attach("b", 4);
  Settle();
  SubmitWith("one", {1, 3});
  SubmitWith("two", {2, 2});
  SubmitWith("beside", {1, 2});
  SubmitWith("last", {1, 1});
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(StateOf("beside"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("beside").placements(0).node(), "b");
  EXPECT_EQ(StateOf("last"), v1::JOB_STATE_QUEUED);
  Finish("one");
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_STARTING) << "no job delays it";
  EXPECT_EQ(StateOf("last"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerBackfillTest, BackfillsIdleSlotsUntilTheySuffice) {
  Attach("a", 1);
  Attach("b", 1);
  Settle();
  SubmitWith("one", {});
  SubmitWith("two", {2, 1});
  SubmitWith("lent", {1, 1, 0, /*preemptible=*/true});
  ASSERT_EQ(StateOf("lent"), v1::JOB_STATE_STARTING);
  EXPECT_TRUE(Job("lent").backfilled());
  EXPECT_THAT(Job("lent").reason(), HasSubstr("backfilled on slots that an earlier job reserves"));
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("lent"), v1::JOB_STATE_STARTING) << "it leaves only when that suffices";
  Finish("one");
  EXPECT_EQ(StateOf("lent"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(Job("lent").reason(), HasSubstr("preempted by job two, which reserved its slots"));
  SubmitWith("more", {1, 1, 0, /*preemptible=*/true});
  EXPECT_EQ(StateOf("more"), v1::JOB_STATE_QUEUED) << "it would be preempted immediately";
  LetLeave();
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("lent"), v1::JOB_STATE_QUEUED);
  EXPECT_FALSE(Job("lent").backfilled()) << "it holds no slots";
  Finish("two");
  EXPECT_EQ(StateOf("lent"), v1::JOB_STATE_STARTING);
  EXPECT_FALSE(Job("lent").backfilled()) << "no job waits for them now";
}

TEST_F(ReconcilerBackfillTest, BackfilledJobLeavesEvenIfItCannotSave) {
  Attach("a", 1);
  Attach("b", 1);
  Settle();
  SubmitWith("one", {});
  SubmitWith("two", {2, 1});
  SubmitWith("lent", {1, 1, 0, /*preemptible=*/true});
  v1::RankUpdate failed = Update("lent", 0);
  failed.mutable_saved()->set_step(3);
  failed.mutable_saved()->set_error("disk full");
  reconciler_->OnReport(Job("lent").placements(0).node(), failed, 0);
  reconciler_->RunOnce();
  Finish("one");
  EXPECT_EQ(StateOf("lent"), v1::JOB_STATE_PAUSING);
  EXPECT_EQ(Job("lent").pause().grace_ms(), 0);
  LetLeave();
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerBackfillTest, WaitingJobReservesItsQuotaToo) {
  quotas_ = {{"vision", 2}};
  Attach("large", 2);
  Attach("small", 1);
  Settle();
  SubmitWith("other", {1, 2});
  SubmitWith("first", {1, 2, 0, false, "vision"});
  SubmitWith("little", {1, 1, 0, false, "vision"});
  EXPECT_EQ(StateOf("little"), v1::JOB_STATE_QUEUED)
      << "its rank would use the quota reserved by the first job";
  EXPECT_EQ(WaitingOf("little").code(), Waiting::CODE_QUOTA);
  Finish("other");
  EXPECT_EQ(StateOf("first"), v1::JOB_STATE_STARTING);
}

// Property: nodes, jobs on them and their end times are the same with and without endless jobs queued behind
// the large job, and the large job starts at the same time.
TEST_F(ReconcilerBackfillTest, NoJobIsDelayedByLaterJobsInRandomQueues) {
  for (int seed = 0; seed < Seeds(200); ++seed) {
    SCOPED_TRACE(seed);
    int started[2] = {-1, -1};
    for (const bool others : {false, true}) {
      std::mt19937 random(static_cast<uint32_t>(seed));
      const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<uint32_t>(bound)); };
      const std::string tag = std::to_string(seed) + (others ? "o" : "a");
      const int nodes = 2 + below(3);
      for (int i = 0; i < nodes; ++i) Attach("n" + std::to_string(i), 1 + below(4));
      if (seed == 0) Settle();
      std::vector<std::string> running;
      for (int i = 0; i < 6; ++i)
        running.push_back(SubmitWith(tag + "r" + std::to_string(i), {1, 1 + below(2)}));
      const std::string large = SubmitWith(tag + "large", {1 + below(nodes), 1 + below(4)});
      for (int i = 0; i < 5; ++i) {
        const Wants wants = {1 + below(2), 1 + below(2), 0, below(2) == 0};
        if (others) SubmitWith(tag + "b" + std::to_string(i), wants);
      }
      for (size_t i = 0; i < running.size() && started[others] < 0; ++i) {
        LetLeave();
        if (IsUp(StateOf(large))) started[others] = static_cast<int>(i);
        const size_t next = static_cast<size_t>(below(static_cast<int>(running.size())));
        if (IsUp(StateOf(running[next]))) Finish(running[next]);
      }
      for (const auto& job : board_->Live()) Cancel(job->id()).IgnoreError();
      for (const auto& job : board_->Live()) End(job->id(), /*cancelled=*/true);
      for (int i = 0; i < nodes; ++i) {
        Detach("n" + std::to_string(i));
        outboxes_.erase("n" + std::to_string(i));
      }
      Advance(absl::Seconds(20));  // The nodes of this case are lost and forgotten.
      ASSERT_THAT(board_->Live(), IsEmpty());
    }
    EXPECT_EQ(started[true], started[false]);
  }
}

// Property: jobs end one after the other and are queued again when preempted; finally all have run.
TEST_F(ReconcilerBackfillTest, EveryJobOfRandomQueueRuns) {
  for (int seed = 0; seed < Seeds(100); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<uint32_t>(bound)); };
    const std::string tag = std::to_string(seed) + "-";
    if (seed == 0) {
      for (int i = 0; i < 3; ++i) Attach("n" + std::to_string(i), 2);
      Settle();
    }
    for (int i = 0; i < 12; ++i)
      SubmitWith(tag + std::to_string(i), {1 + below(3), 1 + below(2), below(3), below(2) == 0});
    int left = 12;
    for (int turns = 0; left > 0 && turns < 100; ++turns) {
      LetLeave();
      std::vector<std::string> up;
      for (const auto& job : board_->Live()) {
        if (IsUp(job->state())) up.push_back(job->id());
      }
      ASSERT_FALSE(up.empty()) << "all jobs wait";
      Finish(up[static_cast<size_t>(below(static_cast<int>(up.size())))]);
      left = static_cast<int>(board_->Live().size());
    }
    EXPECT_EQ(left, 0);
  }
}

}  // namespace
}  // namespace fsdpd
