// Test fixture of a coordinator without network: the real store, registry, rendezvous and board, a fake
// clock, and ticks on demand. The test sends messages in the name of agents, and reads what the coordinator
// sends to them from the outboxes of their streams.
#pragma once

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/attempt/failure_policy.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/memory_dir.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {

class ReconcilerCase : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }

  void Open() {
    auto opened = SqliteStore::Open(dir_.path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = std::move(*opened);
    nodes_ = std::make_unique<NodeRegistry>(store_->generation(), &clock_);
    rendezvous_ = std::make_unique<Rendezvous>();
    board_ = std::make_unique<JobBoard>();
    options_.own_thread = false;
    reconciler_ = std::make_unique<Reconciler>(
        options_,
        Reconciler::Parts{Kept(), nodes_.get(), rendezvous_.get(), board_.get(), &clock_,
                          [this](const v1::JobSpec& spec, int64_t offer) { return plan_(spec, offer); },
                          [this] { return quotas_; }, &meters_});
    ASSERT_TRUE(reconciler_->Load().ok());
  }
  // The store that the reconciler uses.
  virtual StateStore* Kept() { return store_.get(); }
  // Simulates a crash: only the store survives.
  void Restart() {
    outboxes_.clear();
    reconciler_.reset();
    board_.reset();
    nodes_.reset();
    store_.reset();
    Open();
  }

  // Attempt 1 of "j" ran on "a", which was lost; attempt 2 runs on "b".
  void MoveFromAToB() {
    Attach("a", 1);
    Submit("j", 1, 1, /*max_attempts=*/3);
    Ready("a", "j", 0);
    Detach("a");
    outboxes_.clear();
    Advance(absl::Seconds(20));
    Attach("b", 1);
    ASSERT_EQ(Job("j").attempt(), 2);
    Ready("b", "j", 0, 2);
  }

  void Attach(const std::string& node, int slots, const std::vector<AttemptRef>& hosted = {},
              int64_t memory_bytes_per_slot = 0) {
    v1::Register info;
    info.set_node(node);
    info.set_instance(absl::StrCat("instance ", instance_, " of ", node));
    info.set_device(v1::DEVICE_CPU);
    info.set_slots(slots);
    info.set_memory_bytes_per_slot(memory_bytes_per_slot);
    info.set_preflights(agents_measure_);
    info.set_reports_past_attempts(agents_report_had_);
    info.set_acknowledges_launches(agents_acknowledge_);
    for (const AttemptRef& ref : had_) {
      info.add_past_attempts()->set_job_id(ref.job);
      info.mutable_past_attempts()->rbegin()->set_attempt(ref.attempt);
    }
    for (const AttemptRef& ref : hosted) {
      auto* attempt = info.add_hosted();
      attempt->set_job_id(ref.job);
      attempt->set_attempt(ref.attempt);
      for (int rank = 0; rank < 8; ++rank) attempt->add_ranks(rank);
    }
    auto outbox = nodes_->Attach(info, "test", nullptr);
    ASSERT_TRUE(outbox.ok()) << outbox.status();
    outboxes_[node] = *outbox;
    reconciler_->Attached(info, (*outbox)->stream_generation());
    reconciler_->RunOnce();
  }
  void Detach(const std::string& node) { nodes_->Detach(node, outboxes_.at(node)->stream_generation()); }

  std::string Submit(const std::string& id, int nodes, int ranks, int max_attempts = 1,
                     const std::string& directory = "") {
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
    if (!directory.empty()) job.mutable_spec()->mutable_checkpoint()->set_dir(directory);
    job.mutable_spec()->mutable_train()->set_steps(1000000);
    job.mutable_spec()->set_priority(priority_);
    job.set_preemptible(preemptible_);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_->Publish(job);
    reconciler_->Submitted(job);
    reconciler_->RunOnce();
    return id;
  }

  // Job "j", with one rank on each of these nodes, which have one slot: launched, or running.
  void StartOn(const std::vector<std::string>& nodes) {
    for (const std::string& node : nodes) Attach(node, 1);
    Submit("j", static_cast<int>(nodes.size()), 1);
  }
  void RunOn(const std::vector<std::string>& nodes) {
    StartOn(nodes);
    for (size_t rank = 0; rank < nodes.size(); ++rank) Ready(nodes[rank], "j", static_cast<int>(rank));
  }

  v1::Job Job(const std::string& id) {
    if (auto live = board_->Get(id)) return *live;
    return store_->Get(id).value_or(v1::Job());
  }
  std::string Wait(const std::string& id) { return absl::FormatDuration(RetryDelay(Job(id))); }
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
    reconciler_->OnReport(node, update, absl::ToUnixNanos(clock_.Wall()));
    reconciler_->RunOnce();
  }
  void Exit(const std::string& node, const std::string& id, int rank, int code, int attempt = 1) {
    v1::RankExit exit;
    exit.set_exit_code(code);
    ExitWith(node, id, rank, exit, attempt);
  }
  void ExitWith(const std::string& node, const std::string& id, int rank, const v1::RankExit& exit,
                int attempt = 1) {
    v1::RankUpdate update = Update(id, rank, attempt);
    *update.mutable_exit() = exit;
    update.mutable_exit()->set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    reconciler_->OnReport(node, update, absl::ToUnixNanos(clock_.Wall()));
    reconciler_->RunOnce();
  }
  // Exit of a rank whose agent drains.
  static v1::RankExit Drained() {
    v1::RankExit exit;
    exit.set_exit_code(143);
    exit.set_cancelled(true);
    exit.set_drained(true);
    return exit;
  }
  void Stopped(const std::string& node, const std::string& id, int attempt = 1,
               const v1::FreedMemory& memory = {}) {
    v1::Stopped stopped;
    if (memory.ByteSizeLong() > 0) *stopped.mutable_memory() = memory;
    stopped.set_job_id(id);
    stopped.set_attempt(attempt);
    reconciler_->OnReport(node, stopped);
    reconciler_->RunOnce();
  }
  // Advances the clock in steps with ticks, while agents send heartbeats.
  void Advance(absl::Duration by) {
    while (by > absl::ZeroDuration()) {
      const absl::Duration step = std::min(by, absl::Seconds(1));
      by -= step;
      clock_.Advance(step);
      for (const auto& [node, outbox] : outboxes_) nodes_->Touch(node, outbox->stream_generation());
      reconciler_->RunOnce();
    }
  }
  // As after SIGSTOP and SIGCONT: the first tick runs before the messages that arrived meanwhile are read.
  void StallRank(absl::Duration by) {
    clock_.Advance(by);
    reconciler_->RunOnce();
  }
  absl::StatusOr<v1::Job> Cancel(const std::string& id, const std::string& reason = "",
                                 int64_t grace_ms = 10000) {
    return reconciler_->Cancel(id, reason, grace_ms);
  }
  absl::StatusOr<v1::Job> Pause(const std::string& id, int64_t grace_ms = 600000) {
    return reconciler_->Pause(id, "", grace_ms);
  }
  absl::StatusOr<v1::Job> Resume(const std::string& id) { return reconciler_->Resume(id, ""); }

  // Drains a node's outbox.
  std::vector<v1::CoordinatorMessage> Sent(const std::string& node) {
    v1::CoordinatorMessage message;
    std::vector<v1::CoordinatorMessage> messages;
    while (outboxes_.at(node)->TryPop(&message)) messages.push_back(message);
    return messages;
  }
  std::vector<v1::Stop> StopsSent(const std::string& node) {
    std::vector<v1::Stop> stops;
    for (const auto& message : Sent(node)) {
      if (message.has_stop()) stops.push_back(message.stop());
    }
    return stops;
  }
  // Value of fsdpd_agent_messages_rejected_total for this kind.
  double RefusedFromAgents(const std::string& kind) const {
    for (const prometheus::MetricFamily& family : meters_.Collect()) {
      if (family.name != "fsdpd_agent_messages_rejected_total") continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        if (metric.label.at(0).value == kind) return metric.counter.value;
      }
    }
    return 0;
  }
  std::vector<v1::Launch> LaunchesSent(const std::string& node) {
    std::vector<v1::Launch> launches;
    for (const auto& message : Sent(node)) {
      if (message.has_launch()) launches.push_back(message.launch());
    }
    return launches;
  }

  // Specs of these tests have no model. Tests replace this planner.
  Reconciler::Planner plan_ = [](const v1::JobSpec& spec, int64_t) {
    Plan plan;
    plan.resolved = WithDefaults(spec, nullptr);
    return plan;
  };
  RanksByProject quotas_;
  bool agents_measure_ = true;
  bool agents_report_had_ = false;  // Agents that attach report the attempts in had_.
  std::vector<AttemptRef> had_;
  bool agents_acknowledge_ = false;
  int instance_ = 1;  // Instance number of agents that attach.
  int priority_ = 0;  // Priority of submitted jobs.
  bool preemptible_ = false;
  ReconcilerOptions options_;
  MemoryDir dir_;
  FakeClock clock_;
  Meters meters_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<NodeRegistry> nodes_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<JobBoard> board_;
  std::unique_ptr<Reconciler> reconciler_;
  std::map<std::string, std::shared_ptr<StreamOutbox>> outboxes_;
  int submits_ = 0;
};

}  // namespace fsdpd
