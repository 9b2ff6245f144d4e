// In-memory log of the newest stored events of jobs and nodes, in order, for readers that list or watch them.
// A StateStore (state_store.h) owns one. The store loads the log when it is opened, and appends an event only
// after the event was stored together with its change, so a reader never gets an event that a crash could
// undo.
//
// A stored job has no events of its own (Job.events); they are added from the log when the job is read. A
// change is written with all events that its job has in memory. The log detects the new ones by their
// numbers, so a repeated write adds no duplicates.
//
// Bounds: kMaxEvents and kMaxEventAge.
// - Age: for each added event, up to two that are too old are dropped. Age is relative to the earlier of
//   the newest stored event's time and the current time, so a clock that is ahead drops nothing.
// - Number: events are dropped from the job or node with the most events beyond its allowance, so that a
//   flapping node does not displace the history of others. Events that changed no state are dropped first,
//   then the others, the oldest first. A live job retains its first and its newest events, up to the bound of
//   Job.events; others retain kEventsPerEndedOwner. If no owner exceeds its allowance, the oldest events of
//   ended jobs and of nodes are dropped, and events of live jobs only if there are no others.
// - A gap is recorded as an event of the kind EVENTS_DELETED in place of the newest dropped event, with their
//   number. There is at most one per job or node, and a shared one without job and node for events that were
//   dropped because the whole log was too long. Events dropped by age leave no gap.
//
// A reader that resumes after a cursor gets every retained event once, including the gaps. If all events up
// to a later one are gone, the reader gets OUT_OF_RANGE instead.
//
// Thread-safe. One writer at a time calls Number() and then Append() with its result; the same holds for
// Thin() and Forget().
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

// About 300 bytes each, in memory and in the store: 5,000 jobs with ten events.
constexpr size_t kMaxEvents = 50'000;
constexpr absl::Duration kMaxEventAge = absl::Hours(24 * 90);

constexpr size_t kEventsPerEndedOwner = 8;  // Allowance of an ended job or a node.
// A page ends early after its filter examined this many events, which bounds the cost of one request.
constexpr size_t kMaxEventsExamined = 5000;

using Events = std::vector<v1::Event>;

// Events to drop.
struct ThinnedEvents {
  int64_t through = 0;        // All events up to this sequence; 0: none.
  std::vector<int64_t> gone;  // Sequences of further events.
  Events gaps;                // EVENTS_DELETED events that replace those with the same sequence.
  size_t changes() const { return (through > 0 ? 1 : 0) + gone.size() + gaps.size(); }
};

struct EventQuery {
  int64_t after = 0;  // A sequence; 0: from the oldest retained one.
  int limit = 500;    // Number of events.
  // A page ends early, after the event with which it reaches this size.
  size_t max_bytes = SIZE_MAX;
  std::string job, node;    // Empty: all.
  int64_t since_nanos = 0;  // Unix; 0: all.
  // nullptr: all. Not applied to gaps, because the dropped events might have matched. It may be slow: no lock
  // is held while it runs.
  std::function<bool(const v1::Event&)> filter = nullptr;
  size_t max_examined = kMaxEventsExamined;  // Events that the filter may examine.
  bool newest_first = false;
  int64_t before = 0;  // With newest_first: a sequence; 0: from the newest.
};

struct EventPage {
  Events events;  // In the query's order.
  // Position up to which the query is answered; down to which, with newest_first.
  int64_t cursor = 0;
  bool more = false;   // The log has events beyond the cursor.
  int64_t newest = 0;  // Newest sequence of the log; 0 if it is empty.
};

class EventLog {
 public:
  explicit EventLog(size_t max_events = kMaxEvents) : max_events_(max_events) {}

  // Loads all stored events, in order. Sequences below `first` are not assigned from now on, so that a state
  // restored from a backup does not reuse any.
  void Load(Events stored, int64_t first);
  // Returns the new events of `jobs`, and `others`, with assigned sequences and with dates not before the
  // newest date at load time. Events appended later do not shift dates: an event that is stored late keeps
  // its own date.
  Events Number(const std::vector<const v1::Job*>& jobs, Events others) const;
  // Sets the dates of the job's new events to those that Number() assigns, for readers of the live job.
  void Date(v1::Job* job) const;
  // The sequence up to which events are too old once `numbered` is stored; 0: none.
  int64_t ForgetThrough(const Events& numbered, absl::Time now) const;
  void Append(Events numbered, int64_t forget_through);
  // Returns what to drop if the log exceeds its bound, in at most `most` changes. Empty while the log is
  // within its bound or only slightly above it, so that thinning is rare. Call Forget() once it is stored.
  ThinnedEvents Thin(size_t most) const;
  void Forget(const ThinnedEvents& thinned);
  // `job` was deleted: event numbers of a later job with the same id start anew. Its events stay.
  void ForgetJob(const std::string& job);
  void AddTo(v1::Job* job) const;

  // OUT_OF_RANGE if events after `after` were dropped; the message has the oldest retained sequence.
  absl::StatusOr<EventPage> Read(const EventQuery& query) const;
  int64_t newest() const;  // 0: none.
  int64_t oldest() const;  // 0: none.
  // Waits for an event after `sequence`, at most `timeout`.
  void Await(int64_t sequence, absl::Duration timeout) const;

 private:
  using EventPtr = std::shared_ptr<const v1::Event>;
  // True and a job's id, or false and a node's name.
  using Owner = std::pair<bool, std::string>;
  struct Owned {
    std::map<int64_t, EventPtr> events;  // By sequence, without gaps.
    std::set<int64_t> notes;             // Sequences of those that changed no state.
    EventPtr gap;                        // nullptr: no gap.
    // Fields of the current job with this id.
    int64_t first_sequence = 0;
    int64_t last_number = 0;
    bool stored = false;  // The log knows such a job.
    bool ended = false;   // According to its newest event.
    bool live() const { return stored && !ended; }
  };
  struct Candidate;
  struct Slice;
  static Owner OwnerOf(const v1::Event& event) {
    return {!event.job().empty(), event.job().empty() ? event.node() : event.job()};
  }
  std::vector<EventPtr> NewestOf(const std::string& job) const;
  void Add(v1::Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveThrough(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds up to `wanted` events to `thinned`. Returns whether it found any.
  bool PickFromMost(size_t wanted, size_t most, size_t live_keep, ThinnedEvents* thinned) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PickOldest(size_t wanted, size_t most, bool spare_live, ThinnedEvents* thinned) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Slice> SliceOf(const EventQuery& query, int64_t at) const;

  const size_t max_events_;
  mutable Mutex mutex_;
  mutable CondVar added_;
  std::map<int64_t, EventPtr> events_ ABSL_GUARDED_BY(mutex_);
  std::map<Owner, Owned> owned_ ABSL_GUARDED_BY(mutex_);
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t newest_loaded_nanos_ ABSL_GUARDED_BY(mutex_) = 0;  // Date of the newest event that was loaded.
  int64_t dropped_through_ ABSL_GUARDED_BY(mutex_) = 0;      // All events up to this sequence are dropped.
};

// The serialized job as stored: without the events, which the log has.
std::string StoredBytes(const v1::Job& job);
// `job` with its events as the log has them, possibly with later dates.
v1::Job WithEventsOf(const EventLog& log, v1::Job job);
// Numbers the events that a coordinator of an older release stored within the job.
void NumberOldEvents(v1::Job* job);

}  // namespace fsdpd
