// What has happened to jobs and nodes, in order: the newest events that are stored, in memory, for those who
// list or watch them. A store (state_store.h) owns one, loads it when it is opened, and adds to it what it
// has stored together with the change that an event tells of; so nobody is told of what a crash could forget.
//
// Events are kept once: a stored job has none of its own (Job.events), and gets those that the log has when
// it is read. A change is written with all events that its job has in memory; the log knows which of them are
// new by their numbers, so that a write that is made again adds none twice.
//
// Bounds: kMaxEvents, of which the oldest go first, and those older than kMaxEventAge, two when one is added:
// by the newest date that is stored, if that is earlier than the present one, so that a wrong date removes
// nothing. Who wants to go on after events that are gone is told so.
//
// Thread-safe. Number(), and then Append() of what came of it, by one writer at a time.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Some 300 bytes each, in memory and in the store: as many as 5,000 jobs of ten events have.
constexpr size_t kMaxEvents = 50'000;
constexpr absl::Duration kMaxEventAge = absl::Hours(24 * 90);

using Events = std::vector<v1::Event>;

struct EventQuery {
  int64_t after = 0;  // A sequence; 0: from the oldest that is kept.
  int limit = 500;    // Of events.
  // A page ends early, after the event with which it has as many bytes.
  size_t max_bytes = SIZE_MAX;
  std::string job, node;    // Empty: all.
  int64_t since_nanos = 0;  // Unix; 0: all.
};

struct EventPage {
  Events events;       // Oldest first.
  int64_t cursor = 0;  // Nothing that the query is for and that is missing here is at or before it.
  bool more = false;   // There are events after the cursor.
};

class EventLog {
 public:
  // Tests have smaller ones.
  explicit EventLog(size_t max_events = kMaxEvents) : max_events_(max_events) {}

  // --- The store ------------------------------------------------------------------------------------------
  // All that are stored, in order. `first`: no smaller sequence is given from now on, so that a state that
  // was put back from the past gives none again.
  void Load(Events stored, int64_t first);
  // Those of the jobs that are new, and `others`, with their sequences.
  Events Number(const std::vector<const v1::Job*>& jobs, Events others) const;
  // The sequence up to which events are to go once `numbered` are stored; 0: none.
  int64_t ForgetThrough(const Events& numbered, absl::Time now) const;
  void Append(Events numbered, int64_t forget_through);
  // `job` is stored no more: its numbers mean nothing now. Its events stay.
  void ForgetJob(const std::string& job);
  // Those of the job into it, as far as they are kept.
  void AddTo(v1::Job* job) const;

  // --- Any thread -----------------------------------------------------------------------------------------
  // OUT_OF_RANGE where events after `after` are gone; the message says which is the oldest that is kept.
  absl::StatusOr<EventPage> Read(const EventQuery& query) const;
  int64_t newest() const;  // 0: none.
  int64_t oldest() const;  // Likewise.
  // Until there is one after `sequence`, at most `timeout`.
  void Await(int64_t sequence, absl::Duration timeout) const;

 private:
  using Kept = std::shared_ptr<const v1::Event>;
  struct OfJob {
    int64_t last_number = 0;
    std::deque<Kept> events;
  };
  std::vector<Kept> NewestOf(const std::string& job) const;
  void Add(v1::Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_events_;
  mutable Mutex mutex_;
  mutable CondVar added_;
  std::deque<Kept> events_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, OfJob> jobs_ ABSL_GUARDED_BY(mutex_);
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t gone_through_ ABSL_GUARDED_BY(mutex_) = 0;  // The newest that is not kept any more.
};

// A job as it is stored: without the events, which the log has.
std::string StoredBytes(const v1::Job& job);
// Those that a coordinator of an older release stored within the job get their numbers.
void NumberOldEvents(v1::Job* job);

}  // namespace fsdpd
