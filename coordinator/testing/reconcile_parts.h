// Test fixture of the reconciler's own objects without its tick: the real store, registry, table, book and
// records, wired as in reconciler.cc, with a fake clock. A test calls one of them, and reads the messages
// that agents would receive.
#pragma once

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/metrics/meters.h"
#include "coordinator/reconcile/node_records.h"
#include "coordinator/reconcile/slot_holders.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/memory_dir.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {

class ReconcileParts : public ::testing::Test {
 protected:
  void Attach(const std::string& node, int slots = 1, bool measures = false) {
    v1::Register info;
    info.set_node(node);
    info.set_instance(absl::StrCat("agent of ", node));
    info.set_device(v1::DEVICE_CPU);
    info.set_slots(slots);
    info.set_preflights(measures);
    outboxes_[node] = nodes_.Attach(info, "test", nullptr).value();
    presence_.OnAttached(node, outboxes_[node]->stream_generation());
    presence_.Read();
    Sent(node);  // Welcome.
  }
  // The agent is silent until its lease has expired.
  void Lose(const std::string& node) {
    nodes_.Detach(node, outboxes_.at(node)->stream_generation());
    outboxes_.erase(node);
    Advance(absl::Seconds(20));
    ASSERT_EQ(presence_.Of(node), Presence::kLost);
  }
  // Connected agents send heartbeats meanwhile.
  void Advance(absl::Duration by) {
    for (; by > absl::ZeroDuration(); by -= absl::Seconds(1)) {
      clock_.Advance(std::min(by, absl::Seconds(1)));
      presence_.BeginTick(clock_.Now());
      for (const auto& [node, outbox] : outboxes_) nodes_.Touch(node, outbox->stream_generation());
      nodes_.EndSilentStreams(presence_.lease());
    }
    presence_.Read();
  }
  // After a start, until agents had their time to reconnect.
  void Settle() { Advance(absl::Seconds(16)); }

  v1::Job QueuedJob(const std::string& id, int ranks = 1, int nodes = 1) {
    v1::Job job;
    job.set_id(id);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++submits_);
    job.mutable_spec()->mutable_resources()->set_nodes(nodes);
    job.mutable_spec()->mutable_resources()->set_ranks_per_node(ranks);
    job.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CPU);
    job.mutable_spec()->mutable_train()->set_steps(100);
    job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/" + id);
    return job;
  }
  LiveJob* Submit(v1::Job job) {
    *job.mutable_resolved() = WithDefaults(job.spec(), nullptr);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_.Publish(job);
    return &table_.Add(job);
  }
  static PlaceDecision On(const std::vector<std::string>& nodes) {
    PlaceDecision decision;
    for (const std::string& node : nodes) {
      v1::Job::Placement& placement = decision.placements.emplace_back();
      placement.set_node(node);
      placement.set_first_rank(static_cast<int>(decision.placements.size()) - 1);
      placement.set_ranks(1);
      placement.add_devices(0);
    }
    decision.reason = "placed";
    return decision;
  }
  LiveJob* Run(v1::Job job, const std::string& node) {
    LiveJob* live = Submit(std::move(job));
    EXPECT_TRUE(book_.Launch(live, On({node}), /*backfilled=*/false).ok());
    EXPECT_TRUE(table_.Commit(live, JobEvent::kReady, "all ranks are ready").ok());
    Sent(node);
    return live;
  }
  // The attempt failed, and all its ranks are gone.
  void Fail(LiveJob* live) {
    ASSERT_TRUE(table_
                    .Commit(live, JobEvent::kFail, "failed",
                            [](v1::Job* job) { job->mutable_failure()->set_attempt(job->attempt()); })
                    .ok());
    for (NodePart& part : book_.Find(live->job)->parts) part.stopped = true;
    ASSERT_TRUE(table_.Commit(live, JobEvent::kRetry, "next attempt").ok());
    book_.AdvanceStops();
  }

  v1::Job Stored(const std::string& id) { return store_->Get(id).value(); }
  std::vector<v1::CoordinatorMessage> Sent(const std::string& node) {
    v1::CoordinatorMessage message;
    std::vector<v1::CoordinatorMessage> messages;
    while (outboxes_.at(node)->TryPop(&message)) messages.push_back(message);
    return messages;
  }
  std::vector<v1::Stop> StopsTo(const std::string& node) {
    std::vector<v1::Stop> stops;
    for (const v1::CoordinatorMessage& message : Sent(node)) {
      if (message.has_stop()) stops.push_back(message.stop());
    }
    return stops;
  }
  std::vector<v1::EventKind> EventsOf(const std::string& node) {
    EventQuery query;
    query.node = node;
    std::vector<v1::EventKind> kinds;
    const EventPage page = store_->events().Read(query).value();
    for (const v1::Event& event : page.events) kinds.push_back(event.kind());
    return kinds;
  }

  MemoryDir dir_;
  FakeClock clock_;
  Meters meters_;
  std::unique_ptr<SqliteStore> store_ = SqliteStore::Open(dir_.path()).value();
  NodeRegistry nodes_{store_->generation(), &clock_};
  Rendezvous rendezvous_;
  JobBoard board_;
  JobTable table_{{store_.get(), &board_, &clock_, &meters_, nullptr, absl::Seconds(1)}};
  NodePresence presence_{&nodes_, AgentLease(absl::Seconds(15), absl::Milliseconds(100), clock_.Now())};
  AttemptBook book_{{&table_, &presence_, &nodes_, &rendezvous_, &clock_}};
  Cordons cordons_{store_.get()};
  NodeHealth health_{{&presence_, &cordons_, &clock_}};
  int ordered_preflights_ = 0;
  PreflightRunner preflights_{{{v1::DEVICE_CPU}, absl::Minutes(2), {{"cpu", "matmul_tflops", 0.5}}},
                              {&table_, &presence_, &book_, &cordons_, &nodes_, &clock_, &meters_,
                               [this] { ++ordered_preflights_; }}};
  SlotHolders slots_{{&table_, &presence_, &book_, &preflights_, &cordons_, &clock_}};
  NodeRecords records_{{&table_, &presence_, &health_, &preflights_, store_.get(), &clock_}};
  std::map<std::string, std::shared_ptr<StreamOutbox>> outboxes_;
  int submits_ = 0;
};

}  // namespace fsdpd
