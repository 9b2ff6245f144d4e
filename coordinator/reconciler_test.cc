#include "coordinator/reconciler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <future>

#include "base/limits.h"
#include "base/temp_dir.h"
#include "coordinator/sqlite_store.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

// A coordinator without its network: the real store, registry, rendezvous and board, a fake clock, and ticks
// on demand. Agents are what the test says in their name; what they are told lies in their streams' outboxes.
class ReconcilerTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }

  void Open() {
    auto opened = SqliteStore::Open(dir_.path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = std::move(*opened);
    nodes_ = std::make_unique<NodeRegistry>(store_->generation(), &clock_);
    rendezvous_ = std::make_unique<Rendezvous>();
    board_ = std::make_unique<JobBoard>();
    reconciler_ = std::make_unique<Reconciler>(
        ReconcilerOptions(),
        Reconciler::Parts{store_.get(), nodes_.get(), rendezvous_.get(), board_.get(), &clock_,
                          [](const v1::JobSpec& spec, int64_t) { return spec; }});
    ASSERT_TRUE(reconciler_->Load().ok());
  }
  // What a crash leaves: the store.
  void Restart() {
    outboxes_.clear();
    reconciler_.reset();
    board_.reset();
    nodes_.reset();
    store_.reset();
    Open();
  }

  void Attach(const std::string& node, int slots, const std::vector<AttemptRef>& hosted = {}) {
    v1::Register info;
    info.set_node(node);
    info.set_instance("instance of " + node);
    info.set_device(v1::DEVICE_CPU);
    info.set_slots(slots);
    for (const AttemptRef& ref : hosted) {
      auto* attempt = info.add_hosted();
      attempt->set_job_id(ref.job);
      attempt->set_attempt(ref.attempt);
      for (int rank = 0; rank < 8; ++rank) attempt->add_ranks(rank);
    }
    auto outbox = nodes_->Attach(info, "test", nullptr);
    ASSERT_TRUE(outbox.ok()) << outbox.status();
    outboxes_[node] = *outbox;
    reconciler_->Attached(info, (*outbox)->epoch());
    reconciler_->RunOnce();
  }
  void Detach(const std::string& node) { nodes_->Detach(node, outboxes_.at(node)->epoch()); }

  std::string Submit(const std::string& id, int nodes, int ranks, int max_attempts = 1) {
    v1::Job job;
    job.set_id(id);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++submits_);
    auto* resources = job.mutable_spec()->mutable_resources();
    resources->set_nodes(nodes);
    resources->set_ranks_per_node(ranks);
    resources->set_device(v1::DEVICE_CPU);
    job.mutable_spec()->mutable_restart()->set_max_attempts(max_attempts);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_->Publish(job);
    reconciler_->Submitted(job);
    reconciler_->RunOnce();
    return id;
  }

  v1::Job Job(const std::string& id) {
    if (auto live = board_->Get(id)) return *live;
    return store_->Get(id).value_or(v1::Job());
  }
  v1::JobState StateOf(const std::string& id) { return Job(id).state(); }

  v1::RankUpdate Update(const std::string& id, int rank, int attempt = 1) {
    v1::RankUpdate update;
    update.set_job_id(id);
    update.set_attempt(attempt);
    update.set_rank(rank);
    return update;
  }
  void Ready(const std::string& node, const std::string& id, int rank, int attempt = 1) {
    v1::RankUpdate update = Update(id, rank, attempt);
    update.mutable_ready();
    reconciler_->Told(node, update, absl::ToUnixNanos(clock_.Wall()));
    reconciler_->RunOnce();
  }
  void Exit(const std::string& node, const std::string& id, int rank, int code, int attempt = 1) {
    v1::RankUpdate update = Update(id, rank, attempt);
    update.mutable_exit()->set_exit_code(code);
    update.mutable_exit()->set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    reconciler_->Told(node, update, absl::ToUnixNanos(clock_.Wall()));
    reconciler_->RunOnce();
  }
  void Stopped(const std::string& node, const std::string& id, int attempt = 1) {
    v1::Stopped stopped;
    stopped.set_job_id(id);
    stopped.set_attempt(attempt);
    reconciler_->Told(node, stopped);
    reconciler_->RunOnce();
  }
  // Time passes for a coordinator that is awake, and agents say that they live.
  void Advance(absl::Duration by) {
    while (by > absl::ZeroDuration()) {
      const absl::Duration step = std::min(by, absl::Seconds(1));
      by -= step;
      clock_.Advance(step);
      for (const auto& [node, outbox] : outboxes_) nodes_->Touch(node, outbox->epoch());
      reconciler_->RunOnce();
    }
  }
  // As after SIGSTOP and SIGCONT: the first tick runs before anything that agents said meanwhile is read.
  void StandStill(absl::Duration by) {
    clock_.Advance(by);
    reconciler_->RunOnce();
  }
  absl::StatusOr<v1::Job> Cancel(const std::string& id, const std::string& reason = "",
                                 int64_t grace_ms = 10000) {
    auto answer = std::async(std::launch::async, [=] { return reconciler_->Cancel(id, reason, grace_ms); });
    while (answer.wait_for(std::chrono::milliseconds(0)) != std::future_status::ready) {
      reconciler_->RunOnce(absl::Milliseconds(10));
    }
    return answer.get();
  }

  // Takes everything out of a node's outbox; a marker ends it, because Pop() waits.
  std::vector<v1::CoordinatorMessage> Sent(const std::string& node) {
    v1::CoordinatorMessage marker, message;
    marker.mutable_read_logs()->set_request(-1);
    EXPECT_TRUE(nodes_->Send(node, marker));
    std::vector<v1::CoordinatorMessage> messages;
    while (outboxes_.at(node)->Pop(&message) && message.read_logs().request() != -1)
      messages.push_back(message);
    return messages;
  }
  std::vector<v1::Stop> StopsSent(const std::string& node) {
    std::vector<v1::Stop> stops;
    for (const auto& message : Sent(node)) {
      if (message.has_stop()) stops.push_back(message.stop());
    }
    return stops;
  }
  std::vector<v1::Launch> LaunchesSent(const std::string& node) {
    std::vector<v1::Launch> launches;
    for (const auto& message : Sent(node)) {
      if (message.has_launch()) launches.push_back(message.launch());
    }
    return launches;
  }

  TempDir dir_;
  FakeClock clock_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<NodeRegistry> nodes_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<JobBoard> board_;
  std::unique_ptr<Reconciler> reconciler_;
  std::map<std::string, std::shared_ptr<StreamOutbox>> outboxes_;
  int submits_ = 0;
};

TEST_F(ReconcilerTest, LaunchesEveryNodeWithItsShareOfRanks) {
  Attach("a", 2);
  Attach("b", 2);
  Submit("j", 2, 2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  const auto on_a = LaunchesSent("a"), on_b = LaunchesSent("b");
  ASSERT_EQ(on_a.size(), 1u);
  ASSERT_EQ(on_b.size(), 1u);
  EXPECT_EQ(on_a[0].first_rank(), 0);
  EXPECT_EQ(on_b[0].first_rank(), 2);
  EXPECT_EQ(on_b[0].ranks(), 2);
  EXPECT_EQ(on_b[0].world(), 4);
  EXPECT_EQ(on_b[0].attempt(), 1);
  EXPECT_EQ(on_b[0].devices_size(), 2);
}

TEST_F(ReconcilerTest, AJobGoesFromReadyToSucceededAndFreesItsSlots) {
  Attach("a", 2);
  Submit("j", 1, 2);
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 0);
  Ready("a", "j", 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Ready("a", "j", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Exit("a", "j", 0, 0);
  Exit("a", "j", 1, 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 0);  // Until the agent confirms.
  Stopped("a", "j");
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 2);
}

TEST_F(ReconcilerTest, ChangesAreInTheStoreBeforeAnybodyIsTold) {
  Attach("a", 1);
  Submit("j", 1, 1);
  ASSERT_EQ(LaunchesSent("a").size(), 1u);
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(store_->Get("j")->attempt(), 1);
}

TEST_F(ReconcilerTest, JobsOfOneKindAreServedInOrderAndSayWhoIsAhead) {
  Attach("a", 2);
  Submit("running", 1, 1);
  Submit("large", 1, 2);
  Submit("small", 1, 1);  // Would fit, but must not overtake.
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("large").reason(), HasSubstr("a has 1 of 2 free (held by running)"));
  EXPECT_THAT(Job("small").reason(), HasSubstr("waits behind job large"));
  Exit("a", "running", 0, 0);
  Stopped("a", "running");
  EXPECT_EQ(StateOf("large"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerTest, AJobThatNoNodeCouldTakeIsGoneRoundUntilThereAreNodesForIt) {
  Attach("a", 1);
  Submit("large", 2, 1);
  Submit("small", 1, 1);
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED);  // Other agents may be about to come back.
  Advance(absl::Seconds(16));
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_STARTING);
  EXPECT_THAT(Job("large").reason(), HasSubstr("even when idle, only 1 connected node could take 1 rank"));
  EXPECT_THAT(Job("large").reason(), HasSubstr("jobs behind it go first meanwhile"));
  Submit("next", 1, 1);
  Attach("b", 1);
  EXPECT_EQ(StateOf("next"), v1::JOB_STATE_QUEUED);  // Nobody passes it any more.
  EXPECT_THAT(Job("next").reason(), HasSubstr("waits behind job large"));
  Exit("a", "small", 0, 0);
  Stopped("a", "small");
  EXPECT_EQ(StateOf("large"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerTest, AJobWhoseNodeIsAwayForAMomentKeepsItsPlace) {
  Attach("a", 1);
  Attach("b", 1);
  Advance(absl::Seconds(16));
  Submit("running", 1, 1);
  Submit("large", 2, 1);
  Detach("b");
  reconciler_->RunOnce();
  Submit("small", 1, 1);
  Exit("a", "running", 0, 0);
  Stopped("a", "running");
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED);
  outboxes_.erase("b");
  Advance(absl::Seconds(11));  // It is lost.
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerTest, AQueuedReasonIsStoredOnceNotOnEveryTick) {
  Submit("j", 1, 1);
  const int64_t revision = Job("j").revision();
  for (int i = 0; i < 20; ++i) Advance(absl::Milliseconds(100));
  EXPECT_EQ(Job("j").revision(), revision);
}

TEST_F(ReconcilerTest, AFailedRankStopsTheOthersAndTheJobFailsWhenAllAreGone) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1);
  Exit("b", "j", 1, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Advance(absl::Milliseconds(300));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Stopped("b", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("j").failure().rank(), 1);
  EXPECT_EQ(Job("j").failure().node(), "b");
}

TEST_F(ReconcilerTest, AFailedAttemptIsLaunchedAgainWhileAttemptsAreLeft) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Exit("a", "j", 0, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("attempt 1 of 2 failed"));
  Submit("other", 1, 1);  // It takes the slot that waits for nobody.
  EXPECT_EQ(StateOf("other"), v1::JOB_STATE_STARTING);
  Exit("a", "other", 0, 0);
  Stopped("a", "other");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
  Exit("a", "j", 0, 0, /*attempt=*/1);  // Stale: belongs to the attempt before.
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Exit("a", "j", 0, 1, /*attempt=*/2);
  Stopped("a", "j", 2);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
}

TEST_F(ReconcilerTest, ARetryWaitsAsLongAfterARestart) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Exit("a", "j", 0, 1);
  Stopped("a", "j");
  Restart();
  Attach("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerTest, CancelOfAQueuedJobIsImmediate) {
  Submit("j", 1, 1);
  const auto job = Cancel("j", "not needed");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(job->reason(), HasSubstr("not needed"));
  Attach("a", 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
  EXPECT_EQ(Cancel("j")->revision(), job->revision());  // Again: unchanged.
  EXPECT_EQ(Cancel("unknown").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReconcilerTest, CancelOfARunningJobWaitsForEveryNode) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1);
  EXPECT_EQ(Cancel("j", "why", 7000)->state(), v1::JOB_STATE_CANCELLING);
  const auto stops = StopsSent("b");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].grace_ms(), 7000);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(Cancel("j", "", 500)->state(), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(StopsSent("b").back().grace_ms(), 500);  // A second cancel may only shorten the grace.
  Cancel("j", "", 9000).IgnoreError();
  EXPECT_TRUE(StopsSent("b").empty());
  Stopped("b", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
}

TEST_F(ReconcilerTest, AStopIsRepeatedUntilItIsAnswered) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Cancel("j").IgnoreError();
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Advance(absl::Seconds(5));
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Stopped("a", "j");
  Advance(absl::Seconds(5));
  EXPECT_TRUE(StopsSent("a").empty());
}

TEST_F(ReconcilerTest, ALostAgentFailsTheJobAndItsReturnStopsWhatItHosts) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(Job("j").reason(), HasSubstr("waits for the agent of a"));
  Advance(absl::Milliseconds(kAgentLostAfterMs));
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("node a is lost"));
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").size(), 1u);
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 0);
  Stopped("a", "j");
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 1);
}

TEST_F(ReconcilerTest, SettingTheMachinesTimeForwardFailsNoRunningJob) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1);
  Ready("a", "j", 0);
  Ready("b", "j", 1);
  Detach("b");
  clock_.StepWall(absl::Seconds(60));
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(nodes_->Snapshot()[0].connected);
  EXPECT_EQ(Job("j").events().rbegin()->unix_nanos(), absl::ToUnixNanos(clock_.Wall()));
}

TEST_F(ReconcilerTest, SettingTheMachinesTimeBackDoesNotKeepADeadAgentsJobAlive) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Detach("a");
  outboxes_.clear();
  clock_.StepWall(-absl::Seconds(40));
  Advance(absl::Milliseconds(kAgentLostAfterMs + 1));
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("node a is lost"));
}

TEST_F(ReconcilerTest, ACoordinatorThatStoodStillLosesNoJobThoughItHeardNobody) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1);
  Ready("a", "j", 0);
  Ready("b", "j", 1);
  StandStill(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(nodes_->Snapshot()[0].connected);
  // The agents gave up their streams, which is seen now, and come back.
  Detach("a");
  Detach("b");
  outboxes_.clear();
  Advance(absl::Seconds(14));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Attach("a", 1, {{"j", 1}});
  Attach("b", 1, {{"j", 1}});
  Advance(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").attempt(), 1);
}

TEST_F(ReconcilerTest, AnAgentThatDiedWhileTheCoordinatorStoodStillIsLostAfterTheGrace) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  StandStill(absl::Seconds(60));
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(17));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("node a is lost"));
}

TEST_F(ReconcilerTest, AFailureFromBeforeAPauseIsJudgedWithWhatArrivedMeanwhile) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1);
  v1::RankUpdate of_peer = Update("j", 0);
  of_peer.mutable_exit()->set_exit_code(1);
  reconciler_->Told("a", of_peer, 0);
  reconciler_->RunOnce();
  StandStill(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  v1::RankUpdate of_cause = Update("j", 1);
  of_cause.mutable_exit()->set_exit_code(1);
  of_cause.mutable_exit()->set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
  reconciler_->Told("b", of_cause, absl::ToUnixNanos(clock_.Wall() + absl::Seconds(61)));
  Advance(absl::Seconds(1));
  EXPECT_EQ(Job("j").failure().rank(), 1);
}

TEST_F(ReconcilerTest, AShortDisconnectCostsNothing) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Detach("a");
  reconciler_->RunOnce();
  Attach("a", 1, {{"j", 1}});
  Advance(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").attempt(), 1);
}

TEST_F(ReconcilerTest, AnAgentThatCameBackEmptyHandedFailsTheJob) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Detach("a");
  Attach("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
}

TEST_F(ReconcilerTest, ARunningJobGoesOnOverARestartOfTheCoordinator) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1);
  Ready("a", "j", 0);
  Ready("b", "j", 1);
  Restart();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Attach("a", 1, {{"j", 1}});
  Attach("b", 1, {{"j", 1}});
  Advance(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").attempt(), 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
  Exit("a", "j", 0, 0);
  Exit("b", "j", 1, 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ReconcilerTest, AnExitDuringTheOutageIsTakenAfterwards) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Restart();
  Attach("a", 1);  // Its rank has ended meanwhile; the report follows.
  Exit("a", "j", 0, 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ReconcilerTest, AJobThatEndedDuringAnOutageEndedThenAndNotWhenItsAgentCameBack) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(2));
  v1::RankUpdate exit = Update("j", 0);
  exit.mutable_exit()->set_unix_nanos(1000);  // Its clock is not ours.
  const absl::Time ended = clock_.Wall();
  Advance(absl::Seconds(5));
  Attach("a", 1, {{"j", 1}});
  reconciler_->Told("a", exit, 1000 + 5'000'000'000);
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Job("j").end_unix_nanos(), absl::ToUnixNanos(ended));
}

TEST_F(ReconcilerTest, AnEndBeforeTheStartIsNotBelieved) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Advance(absl::Seconds(1));
  v1::RankUpdate exit = Update("j", 0);
  exit.mutable_exit()->set_unix_nanos(1);
  reconciler_->Told("a", exit, 3600'000'000'000);
  reconciler_->RunOnce();
  EXPECT_EQ(Job("j").end_unix_nanos(), Job("j").start_unix_nanos());
}

TEST_F(ReconcilerTest, AJobWhoseAgentsStayAwayAfterARestartFailsAfterTheGrace) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Restart();
  Advance(absl::Seconds(14));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Advance(absl::Seconds(2));
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("did not come back"));
}

TEST_F(ReconcilerTest, ALaunchSwallowedByARestartIsLaunchedAgain) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Restart();
  Attach("a", 1);  // It never got the launch.
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Stopped("a", "j");
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
}

TEST_F(ReconcilerTest, AStoppingJobFailsAfterARestartWithTheFailureItHad) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Exit("a", "j", 0, 3);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Restart();
  Attach("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("j").failure().exit_code(), 3);
}

TEST_F(ReconcilerTest, ACancellingJobIsCancelledAfterARestart) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Cancel("j").IgnoreError();
  Restart();
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
}

TEST_F(ReconcilerTest, AHostedAttemptThatNobodyKnowsIsStoppedAndHoldsItsNode) {
  Attach("a", 2, {{"of-another-cluster", 3}});
  const auto stops = StopsSent("a");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].attempt(), 3);
  Submit("j", 1, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Stopped("a", "of-another-cluster", 3);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerTest, StepsAreKeptWithoutARevisionAndSavedWithinASecond) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Advance(absl::Seconds(2));
  const int64_t before = Job("j").revision();
  for (int step = 1; step <= 3; ++step) {
    v1::RankUpdate update = Update("j", 0);
    update.mutable_step()->set_step(step);
    update.mutable_step()->set_loss(6.0 - step);
    reconciler_->Told("a", update, 0);
  }
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);  // A step of rank 0 shows that all ranks run.
  EXPECT_EQ(Job("j").revision(), before + 1);
  v1::RankUpdate update = Update("j", 0);
  update.mutable_step()->set_step(4);
  reconciler_->Told("a", update, 0);
  reconciler_->RunOnce();
  EXPECT_EQ(Job("j").last_step().step(), 4);
  EXPECT_EQ(Job("j").first_loss(), 5.0);
  EXPECT_EQ(Job("j").revision(), before + 1);
  Advance(absl::Seconds(1));
  EXPECT_EQ(store_->Get("j")->last_step().step(), 4);
}

TEST_F(ReconcilerTest, ARunningJobThatMakesNoStepSaysSoUntilOneComes) {
  Attach("a", 1);
  Submit("j", 1, 1);
  const auto step = [&](int64_t number) {
    v1::RankUpdate update = Update("j", 0);
    update.mutable_step()->set_step(number);
    update.mutable_step()->set_step_seconds(0.2);
    update.mutable_step()->set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    reconciler_->Told("a", update, 0);
    reconciler_->RunOnce();
  };
  for (int number = 1; number <= 3; ++number) step(number);
  const absl::Time last = clock_.Wall();
  Advance(absl::Seconds(10));
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), 0);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").reason(), "no step for 11 s; the last one took 200 ms");
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), absl::ToUnixNanos(last));
  const int64_t revision = Job("j").revision();
  Advance(absl::Seconds(60));
  EXPECT_EQ(Job("j").revision(), revision);  // Told once.
  step(4);
  EXPECT_EQ(Job("j").reason(), "steps go on after 1 m 11 s without one");
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), 0);
}

TEST_F(ReconcilerTest, AStallOutlivesARestartAndEndsWithTheAttempt) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Advance(absl::Minutes(6));
  EXPECT_NE(Job("j").stalled_since_unix_nanos(), 0);
  Restart();
  Attach("a", 1, {{"j", 1}});
  Advance(absl::Seconds(1));
  EXPECT_NE(Job("j").stalled_since_unix_nanos(), 0);
  Exit("a", "j", 0, 1);
  Stopped("a", "j");
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), 0);
}

TEST_F(ReconcilerTest, AFaultOfTheRendezvousFailsTheAttempt) {
  Attach("a", 1);
  Submit("j", 1, 1);
  reconciler_->Fault({"j", 1}, "rendezvous key 'k' was set twice with different values");
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("set twice"));
}

TEST_F(ReconcilerTest, RendezvousIsOpenExactlyWhileTheAttemptMayRun) {
  Attach("a", 1);
  Submit("j", 1, 1);
  const AttemptRef ref = {"j", 1};
  EXPECT_TRUE(rendezvous_->Set(ref, "k", "v").ok());
  Cancel("j").IgnoreError();
  EXPECT_FALSE(rendezvous_->Set(ref, "k", "v").ok());
}

// No file of this process grows while one lives.
class FullDisk {
 public:
  FullDisk() {
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit none = {1, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~FullDisk() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0); }

 private:
  rlimit before_;
};

TEST_F(ReconcilerTest, ARunningJobIsCancelledThoughTheStoreCannotWriteAndStoredOnceItCan) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  std::optional<FullDisk> full(std::in_place);
  const auto job = Cancel("j", "enough");
  const size_t stops = StopsSent("a").size();
  Stopped("a", "j");
  const int free_slots = nodes_->Snapshot()[0].free_slots;
  full.reset();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_CANCELLING);
  EXPECT_THAT(job->reason(), HasSubstr("stopping the ranks: enough; not on disk yet: "));
  EXPECT_EQ(stops, 1u);
  EXPECT_EQ(free_slots, 1);
  Advance(absl::Seconds(2));
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(ReconcilerTest, ACancelOfAQueuedJobThatCannotBeStoredIsRefused) {
  Submit("j", 1, 1);
  std::optional<FullDisk> full(std::in_place);
  const auto job = Cancel("j");
  full.reset();
  EXPECT_FALSE(job.ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerTest, NothingIsLaunchedWhileTheStoreCannotWrite) {
  Attach("a", 1);
  Submit("first", 1, 1);
  ASSERT_EQ(LaunchesSent("a").size(), 1u);
  std::optional<FullDisk> full(std::in_place);
  Exit("a", "first", 0, 0);
  const v1::JobState stuck = StateOf("first");
  full.reset();
  EXPECT_EQ(stuck, v1::JOB_STATE_STARTING);
  Advance(absl::Milliseconds(100));
  EXPECT_EQ(StateOf("first"), v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace fsdpd
