// One of several coordinators that loses leadership in the middle of a tick.
#include <algorithm>

#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rejects all writes once `ends` is set: the next change of a job loses leadership, as if etcd had no quorum.
class LeadersStore : public StateStore {
 public:
  explicit LeadersStore(StateStore* store) : store_(store) {}

  bool ends = false;
  bool leads = true;
  std::string too_large;                        // A job that is rejected, as by etcd.
  int updated = 0;                              // Jobs passed to UpdateAll().
  bool nodes_fail = false;                      // Fails the next read of nodes.
  std::function<absl::Status()> before_forget;  // Runs once before a removal.

  int64_t generation() const override { return store_->generation(); }
  const EventLog& events() const override { return store_->events(); }
  absl::StatusOr<std::optional<v1::Job>> FindRequest(const std::string& id,
                                                     const v1::JobSpec& spec) override {
    return store_->FindRequest(id, spec);
  }
  absl::StatusOr<Inserted> Insert(const v1::Job& job) override { return store_->Insert(job); }
  absl::Status Update(const v1::Job& job) override {
    const absl::Status taken = Take();
    if (taken.ok() && job.id() == too_large) return absl::OutOfRangeError("request is too large");
    return taken.ok() ? store_->Update(job) : taken;
  }
  std::vector<absl::Status> UpdateAll(const std::vector<const v1::Job*>& jobs) override {
    updated += static_cast<int>(jobs.size());
    const absl::Status taken = Take();
    if (!taken.ok()) return std::vector<absl::Status>(jobs.size(), taken);
    std::vector<absl::Status> results;
    for (const v1::Job* job : jobs)
      results.push_back(job->id() == too_large ? absl::OutOfRangeError("request is too large")
                                               : store_->UpdateAll({job}).front());
    return results;
  }
  absl::Status Delete(const std::string& id, const Events& news) override { return store_->Delete(id, news); }
  absl::StatusOr<std::vector<std::string>> ForgetEnded(const Retention& retention, absl::Time now,
                                                       int limit) override {
    return store_->ForgetEnded(retention, now, limit);
  }
  absl::StatusOr<v1::Job> Get(const std::string& id) override { return store_->Get(id); }
  absl::StatusOr<JobPage> List(const JobQuery& query) override { return store_->List(query); }
  absl::StatusOr<std::vector<v1::Job>> LiveJobs() override { return store_->LiveJobs(); }
  absl::Status SetCordon(const std::string& node, const v1::Cordon& cordon, const Events& news) override {
    return store_->SetCordon(node, cordon, news);
  }
  absl::Status RemoveCordon(const std::string& node, const Events& news) override {
    return store_->RemoveCordon(node, news);
  }
  absl::StatusOr<std::map<std::string, v1::Cordon>> Cordons() override { return store_->Cordons(); }
  absl::Status UpdateNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone,
                           const Events& news) override {
    if (before_forget && !gone.empty()) {
      const absl::Status allowed = std::exchange(before_forget, nullptr)();
      if (!allowed.ok()) return allowed;
    }
    return store_->UpdateNodes(changed, gone, news);
  }
  absl::StatusOr<v1::ListNodesResponse> Nodes() override {
    return std::exchange(nodes_fail, false) ? absl::UnavailableError("etcd: timed out") : store_->Nodes();
  }

 private:
  absl::Status Take() {
    leads &= !ends;
    return leads ? absl::OkStatus() : absl::UnavailableError("the lead is lost");
  }

  StateStore* const store_;
};

class ReconcilerLeadTest : public ReconcilerCase {
 protected:
  void SetUp() override {
    options_.leads = [this] { return kept_->leads; };
    options_.progress_every = absl::Seconds(30);
    ReconcilerCase::SetUp();
  }
  StateStore* Kept() override {
    kept_ = std::make_unique<LeadersStore>(store_.get());
    return kept_.get();
  }

  std::unique_ptr<LeadersStore> kept_;
};

TEST_F(ReconcilerLeadTest, CancelThatLosesLeadershipIsRejectedWithoutEffect) {
  RunOn({"a"});
  kept_->ends = true;
  EXPECT_TRUE(absl::IsUnavailable(Cancel("j").status()));
  EXPECT_THAT(StopsSent("a"), IsEmpty());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_RUNNING) << "the next leader lets it continue";
}

// Regression: it held the node forever, and the jobs behind it waited.
TEST_F(ReconcilerLeadTest, OversizedLaunchAfterPreflightReleasesNodes) {
  options_.preflight.devices = {v1::DEVICE_CPU};
  Restart();
  Attach("a", 1);
  Submit("large", 1, 1);
  Submit("small", 1, 1);
  ASSERT_EQ(StateOf("large"), v1::JOB_STATE_PREFLIGHT);
  kept_->too_large = "large";
  v1::PreflightResult result;
  for (const v1::CoordinatorMessage& message : Sent("a")) {
    if (message.has_preflight()) result.set_number(message.preflight().number());
  }
  result.add_devices()->set_matmul_flops(1e12);
  reconciler_->OnReport("a", result);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("large"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("large").reason(), HasSubstr("its launch cannot be stored: request is too large"));
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerLeadTest, FailureThatLosesLeadershipIsLeftToNextLeader) {
  RunOn({"a", "b"});
  kept_->ends = true;
  Exit("a", "j", 0, 9);
  Advance(absl::Seconds(2));
  EXPECT_FALSE(kept_->leads);
  EXPECT_THAT(StopsSent("b"), IsEmpty());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
}

// A store whose history uses space, like etcd's.
TEST_F(ReconcilerLeadTest, StoresStepsAtConfiguredIntervalAndCheckpointsWithinASecond) {
  RunOn({"a"});
  Advance(absl::Seconds(40));
  const auto step = [this](int64_t number) {
    v1::RankUpdate update = Update("j", 0);
    update.mutable_step()->set_step(number);
    reconciler_->OnReport("a", update, 0);
    Advance(absl::Seconds(1));
  };
  int64_t stored = 0, writes = 0;
  for (int64_t number = 1; number <= 90; ++number) {
    step(number);
    EXPECT_EQ(Job("j").last_step().step(), number) << "readers see each";
    const int64_t now = store_->Get("j")->last_step().step();
    writes += now != stored;
    stored = now;
  }
  EXPECT_EQ(writes, 3);
  v1::RankUpdate saved = Update("j", 0);
  saved.mutable_saved()->set_step(90);
  saved.mutable_saved()->set_path("/runs/j");
  reconciler_->OnReport("a", saved, 0);
  Advance(absl::Seconds(1));
  EXPECT_EQ(store_->Get("j")->checkpoints_size(), 1);
  EXPECT_EQ(store_->Get("j")->last_step().step(), 90);
}

// Regression: one error for the whole batch left every job unchanged in memory, although the store had the
// others.
TEST_F(ReconcilerLeadTest, OversizedJobDoesNotBlockOthers) {
  for (const char* node : {"a", "b"}) Attach(node, 1);
  Submit("large", 1, 1);
  Submit("small", 1, 1);
  const std::string of_large = Job("large").placements(0).node(),
                    of_small = Job("small").placements(0).node();
  kept_->too_large = "large";
  v1::RankUpdate ready = Update("large", 0);
  ready.mutable_ready();
  reconciler_->OnReport(of_large, ready, 0);
  Ready(of_small, "small", 0);  // In the same tick.
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(StateOf("large"), v1::JOB_STATE_STARTING) << "retried in each tick";
  for (const auto& [node, id] : {std::pair(of_large, "large"), std::pair(of_small, "small")}) {
    v1::RankUpdate saved = Update(id, 0);
    saved.mutable_saved()->set_step(10);
    saved.mutable_saved()->set_path("/runs/j");
    reconciler_->OnReport(node, saved, 0);
  }
  Advance(absl::Seconds(2));
  EXPECT_EQ(store_->Get("small")->checkpoints_size(), 1);
  EXPECT_EQ(store_->Get("large")->checkpoints_size(), 0);
  EXPECT_THAT(board_->Get("large")->reason(), HasSubstr("not on disk yet: request is too large"));
  EXPECT_EQ(board_->Get("small")->store_error(), "");
  kept_->updated = 0;
  Advance(absl::Seconds(3));
  EXPECT_EQ(kept_->updated, 2 * 3) << "of the large job only: its change of each tick, and its checkpoint";
  kept_->too_large.clear();
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("large"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(store_->Get("large")->checkpoints_size(), 1);
  EXPECT_EQ(board_->Get("large")->store_error(), "");
}

TEST_F(ReconcilerLeadTest, OnlyLeaderShortensUselessSave) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/1, "/runs/j");
  Ready("a", "j", 0);
  Ready("b", "j", 1);
  ASSERT_TRUE(Cancel("j", "", /*grace_ms=*/600000).ok());
  ASSERT_TRUE(StopsSent("a").at(0).save());
  kept_->ends = true;
  Exit("b", "j", 1, 9);
  Advance(absl::Seconds(2));
  EXPECT_FALSE(kept_->leads);
  EXPECT_THAT(StopsSent("a"), IsEmpty());
}

TEST_F(ReconcilerLeadTest, RequestsAfterLostLeadershipInSameTickAreNotDone) {
  RunOn({"a"});
  Submit("k", 1, 1);
  kept_->ends = true;
  EXPECT_FALSE(Cancel("k").ok());
  kept_->ends = false;  // The disk is not the cause.
  EXPECT_THAT(std::string(Cancel("j").status().message()), HasSubstr("the coordinator is stopping"));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(store_->Get("k")->state(), v1::JOB_STATE_QUEUED);
}

// Regression: the next write dropped the rows of all nodes, with the jobs whose ranks may still run there.
TEST_F(ReconcilerLeadTest, UnreadableNodesFailTheStart) {
  RunOn({"a"});
  Detach("a");
  outboxes_.erase("a");
  Advance(absl::Minutes(1));
  ASSERT_EQ(store_->Nodes()->nodes(0).unconfirmed_jobs_size(), 1);
  kept_->nodes_fail = true;
  EXPECT_EQ(reconciler_->Load().message(), "etcd: timed out");
  Restart();
  Advance(absl::Minutes(1));
  ASSERT_EQ(store_->Nodes()->nodes_size(), 1);
  EXPECT_EQ(store_->Nodes()->nodes(0).unconfirmed_jobs_size(), 1);
}

class ReconcilerDeleteTest : public ReconcilerLeadTest {
 protected:
  bool HasDeletedEvent() {
    const auto read = store_->events().Read({});
    EXPECT_TRUE(read.ok());
    return std::any_of(read->events.begin(), read->events.end(),
                       [](const v1::Event& event) { return event.kind() == v1::EVENT_KIND_NODE_DELETED; });
  }
};

// Regression: it registered between the event and the node's removal, so the event was false.
TEST_F(ReconcilerDeleteTest, EventIsStoredOnlyIfNodeWasDeleted) {
  Attach("a", 1);
  Detach("a");
  outboxes_.erase("a");
  Advance(absl::Minutes(1));
  kept_->before_forget = [this] {
    v1::Register info;
    info.set_node("a");
    info.set_instance("another");
    info.set_device(v1::DEVICE_CPU);
    info.set_slots(1);
    return nodes_->Attach(info, "test", nullptr).status();
  };
  const absl::Status deleted = reconciler_->DeleteNode("a", /*force=*/false);
  EXPECT_EQ(kept_->before_forget, nullptr);
  EXPECT_EQ(deleted.ok(), HasDeletedEvent()) << deleted;
  EXPECT_TRUE(nodes_->Snapshot().at(0).connected);
}

TEST_F(ReconcilerDeleteTest, NodeStaysIfDeletionCannotBeStored) {
  RunOn({"a"});
  Detach("a");
  outboxes_.erase("a");
  Advance(absl::Minutes(1));
  kept_->before_forget = [] { return absl::UnavailableError("the disk is full"); };
  EXPECT_EQ(reconciler_->DeleteNode("a", /*force=*/true).message(), "the disk is full");
  EXPECT_FALSE(HasDeletedEvent());
  ASSERT_EQ(nodes_->Snapshot().size(), 1u);
  EXPECT_THAT(nodes_->Snapshot()[0].unconfirmed_jobs, ::testing::ElementsAre("j"));
  EXPECT_TRUE(reconciler_->DeleteNode("a", /*force=*/true).ok());
  EXPECT_TRUE(HasDeletedEvent());
  EXPECT_TRUE(nodes_->Snapshot().empty());
}

}  // namespace
}  // namespace fsdpd
