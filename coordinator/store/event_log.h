// What has happened to jobs and nodes, in order: the newest events that are stored, in memory, for those who
// list or watch them. A store (state_store.h) owns one, loads it when it is opened, and adds to it what it
// has stored together with the change that an event tells of; so nobody is told of what a crash could forget.
//
// Events are kept once: a stored job has none of its own (Job.events), and gets those that the log has when
// it is read. A change is written with all events that its job has in memory; the log knows which of them are
// new by their numbers, so that a write that is made again adds none twice.
//
// Bounds: kMaxEvents, and kMaxEventAge. Those that are older go, two when one is added: by the newest date
// that is stored, if that is earlier than the present one, so that a wrong date removes nothing. Where there
// are too many, they go from the job or node that has most beyond what it may keep, so that one that flaps
// takes nobody else's history: first what changed no state, then what did, the oldest first. A job that has
// not ended keeps its first and its newest, as many as Job.events has, others kFewEvents. A hole says so in
// their place: an event of the kind FORGOTTEN, one for each job or node, where the newest of them was, with
// their number. Where nobody has more, the oldest go of all that are not of a job that has not ended, with
// one hole of them all, which has neither job nor node. Only where there are none, those of such jobs do.
//
// So who goes on after a cursor gets every event that is kept, once, and the holes after it; where all events
// up to some later one are gone, he is told that instead (OUT_OF_RANGE).
//
// Thread-safe. Number(), and then Append() of what came of it, by one writer at a time; so too Thin().
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Some 300 bytes each, in memory and in the store: as many as 5,000 jobs of ten events have.
constexpr size_t kMaxEvents = 50'000;
constexpr absl::Duration kMaxEventAge = absl::Hours(24 * 90);

constexpr size_t kFewEvents = 8;  // Of an ended job or a node: they are forgotten by their age alone.
// A page ends early after a filter was asked of so many events: one reader's filter costs no more at once.
constexpr size_t kMaxEventsLookedAt = 5000;

using Events = std::vector<v1::Event>;

// What is to be forgotten.
struct ThinnedEvents {
  int64_t through = 0;        // All up to this sequence; 0: none.
  std::vector<int64_t> gone;  // And these.
  Events holes;               // In place of those of their sequences.
  size_t changes() const { return (through > 0 ? 1 : 0) + gone.size() + holes.size(); }
};

struct EventQuery {
  int64_t after = 0;  // A sequence; 0: from the oldest that is kept.
  int limit = 500;    // Of events.
  // A page ends early, after the event with which it has as many bytes.
  size_t max_bytes = SIZE_MAX;
  std::string job, node;    // Empty: all.
  int64_t since_nanos = 0;  // Unix; 0: all.
  // Null: all. Of holes it is not asked: what is forgotten may have been wanted. It may take its time.
  std::function<bool(const v1::Event&)> filter = nullptr;
  size_t most_looked_at = kMaxEventsLookedAt;  // By the filter.
  bool newest_first = false;
  int64_t before = 0;  // With newest_first: a sequence; 0: from the newest.
};

struct EventPage {
  Events events;       // As the query orders them.
  int64_t cursor = 0;  // Nothing that the query is for and that is missing here is at or before it; after it,
                       // where the newest come first.
  bool more = false;   // There are events beyond the cursor.
  int64_t newest = 0;  // Of the whole log; 0: it has none.
};

class EventLog {
 public:
  // Tests have smaller ones.
  explicit EventLog(size_t max_events = kMaxEvents) : max_events_(max_events) {}

  // --- The store ------------------------------------------------------------------------------------------
  // All that are stored, in order. `first`: no smaller sequence is given from now on, so that a state that
  // was put back from the past gives none again.
  void Load(Events stored, int64_t first);
  // Those of the jobs that are new, and `others`, with their sequences, and not dated before what was stored
  // when the log was loaded. Later events do not count: one that is stored late keeps its own date.
  Events Number(const std::vector<const v1::Job*>& jobs, Events others) const;
  // Gives those of the job that are new the dates that Number() gives them, for readers of the live job.
  void Date(v1::Job* job) const;
  // The sequence up to which events are too old once `numbered` are stored; 0: none.
  int64_t ForgetThrough(const Events& numbered, absl::Time now) const;
  void Append(Events numbered, int64_t forget_through);
  // What is to go as there are too many, in at most `most` changes; empty where there are not, or only a few
  // more, so that it is seldom asked for. Forgotten once that is stored.
  ThinnedEvents Thin(size_t most) const;
  void Forget(const ThinnedEvents& thinned);
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
  // Whose it is: a job's id, or a node's name.
  using Owner = std::pair<bool, std::string>;
  struct Owned {
    std::map<int64_t, Kept> events;  // By sequence, without the hole.
    std::set<int64_t> notes;         // Of these, those that changed no state.
    Kept hole;                       // Null: none.
    // Of the job that has the id now.
    int64_t began = 0;
    int64_t last_number = 0;
    bool stored = false;  // As far as is known there is one.
    bool ended = false;   // As its newest event has it.
    bool live() const { return stored && !ended; }
  };
  struct Picked;
  struct Slice;
  static Owner OwnerOf(const v1::Event& event) {
    return {!event.job().empty(), event.job().empty() ? event.node() : event.job()};
  }
  std::vector<Kept> NewestOf(const std::string& job) const;
  void Add(v1::Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveThrough(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What goes into `thinned`, up to `wanted` events: whether there are any.
  bool PickFromMost(size_t wanted, size_t most, size_t live_keep, ThinnedEvents* thinned) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PickOldest(size_t wanted, size_t most, bool spare_live, ThinnedEvents* thinned) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Slice> SliceOf(const EventQuery& query, int64_t at) const;

  const size_t max_events_;
  mutable Mutex mutex_;
  mutable CondVar added_;
  std::map<int64_t, Kept> events_ ABSL_GUARDED_BY(mutex_);
  std::map<Owner, Owned> owned_ ABSL_GUARDED_BY(mutex_);
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t loaded_unix_nanos_ ABSL_GUARDED_BY(mutex_) = 0;  // Of the newest event of earlier lives.
  int64_t gone_through_ ABSL_GUARDED_BY(mutex_) = 0;       // The newest of which all up to it are gone.
};

// A job as it is stored: without the events, which the log has.
std::string StoredBytes(const v1::Job& job);
// `job` with its events as the log has them, which may have given them later dates.
v1::Job WithEventsOf(const EventLog& log, v1::Job job);
// Those that a coordinator of an older release stored within the job get their numbers.
void NumberOldEvents(v1::Job* job);

}  // namespace fsdpd
