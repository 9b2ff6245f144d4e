#include "coordinator/store/event_log.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/arena.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

// Date of an event that happens `now` (Unix nanoseconds) and must not precede `before`, the newest loaded
// date. This coordinator's clock may be up to a day behind that of the previous leader. A larger difference
// means that the stored date was wrong; it is ignored.
int64_t EventDate(int64_t before, int64_t now) {
  const int64_t kMaxBehind = absl::ToInt64Nanoseconds(absl::Hours(24));
  return before - now > kMaxBehind ? now : std::max(before, now);
}

// Events dropped by age per added event. A clock that is wrong for a moment, as at boot before NTP, drops no
// more than that.
constexpr size_t kMaxDropsByAge = 2;
// The log may exceed its bound by 1/kSlack, so that only one in several hundred writes thins it.
constexpr size_t kSlack = 128;
// Events that a reader copies while it holds the lock. Writers wait for no more than that.
constexpr size_t kSlice = 256;

// Between v1::Event and v1::Job::Event, which have the same fields except the job.
template <typename To, typename From>
To Converted(const From& from) {
  To to;
  to.set_unix_nanos(from.unix_nanos());
  to.set_kind(from.kind());
  to.set_node(from.node());
  to.set_attempt(from.attempt());
  to.set_state(from.state());
  to.set_cause(from.cause());
  to.set_message(from.message());
  to.set_number(from.number());
  return to;
}

bool IsGap(const v1::Event& event) { return event.kind() == v1::EVENT_KIND_EVENTS_DELETED; }

// A gap that covers several jobs or nodes.
bool IsSharedGap(const v1::Event& event) {
  return IsGap(event) && event.job().empty() && event.node().empty();
}

// Ignores the query's filter.
bool MatchesQuery(const EventQuery& query, const v1::Event& event) {
  if (event.unix_nanos() < query.since_nanos) return false;
  if (IsSharedGap(event)) return true;
  // Dropped events of a job may have named any node.
  const bool of_node = event.node() == query.node || (IsGap(event) && !event.job().empty());
  return (query.job.empty() || event.job() == query.job) && (query.node.empty() || of_node);
}

// Both events are of the same job or node.
bool ChangesState(const v1::Event& before, const v1::Event& event) {
  return event.job().empty() ? event.kind() != before.kind() : event.state() != before.state();
}

v1::Event GapAt(const v1::Event& newest, int64_t forgotten) {
  v1::Event gap;
  gap.set_sequence(newest.sequence());
  gap.set_unix_nanos(newest.unix_nanos());
  gap.set_kind(v1::EVENT_KIND_EVENTS_DELETED);
  gap.set_job(newest.job());
  if (newest.job().empty()) gap.set_node(newest.node());
  gap.set_attempt(newest.attempt());
  gap.set_state(newest.state());
  gap.set_deleted_events(forgotten);
  const char* const of_owners = IsSharedGap(gap) ? " of ended jobs and of nodes" : "";
  gap.set_message(forgotten == 1 ? absl::StrCat("an earlier event", of_owners, " was dropped")
                                 : absl::StrCat(forgotten, " earlier events", of_owners, " were dropped"));
  return gap;
}

// Records that `count` events up to `newest` are dropped. `before` is the owner's existing gap, which is
// merged into the new one.
void AddGap(const v1::Event* before, const v1::Event& newest, int64_t count, ThinnedEvents* thinned) {
  const bool moves = before != nullptr && before->sequence() < newest.sequence();
  if (moves) thinned->gone.push_back(before->sequence());
  thinned->gaps.push_back(GapAt(before == nullptr || moves ? newest : *before,
                                count + (before == nullptr ? 0 : before->deleted_events())));
}

}  // namespace

// One owner's events beyond its allowance, in the order in which they are dropped.
struct EventLog::Candidate {
  // The owner retains its first event and the newest ones, `keeps` in all.
  Candidate(const Owned& owned, size_t keeps)
      : owned(&owned), excess(owned.events.size() - keeps), note(owned.notes.begin()) {
    change = std::next(owned.events.begin());
    stay_from = std::prev(owned.events.end(), static_cast<ptrdiff_t>(keeps) - 1)->first;
  }
  // The next event to drop: events that changed no state first, then the others, oldest first. REQUIRES:
  // excess > 0.
  const EventPtr& Next() {
    const int64_t first = owned->events.begin()->first;
    --excess;
    while (note != owned->notes.end() && *note == first) ++note;
    if (note != owned->notes.end() && *note < stay_from) return owned->events.at(*note++);
    while (owned->notes.count(change->first) != 0) ++change;
    return (change++)->second;
  }
  bool operator<(const Candidate& other) const { return excess < other.excess; }  // For a max-heap.

  const Owned* owned;
  size_t excess;
  int64_t stay_from = 0;
  std::set<int64_t>::const_iterator note;
  std::map<int64_t, EventPtr>::const_iterator change;
  int64_t count = 0;
  EventPtr newest;  // The newest dropped event.
};

void EventLog::Load(Events stored, int64_t first) {
  MutexLock lock(&mutex_);
  for (v1::Event& event : stored) Add(std::move(event));
  // It is unknown what was dropped earlier; from the oldest loaded event on, nothing is missing.
  dropped_through_ = events_.empty() ? 0 : events_.begin()->first - 1;
  next_ = std::max(next_, first);
  newest_loaded_nanos_ = events_.empty() ? 0 : events_.rbegin()->second->unix_nanos();
}

void EventLog::Add(v1::Event event) {
  const int64_t sequence = event.sequence();
  next_ = std::max(next_, sequence + 1);
  const auto stored = std::make_shared<const v1::Event>(std::move(event));
  events_[sequence] = stored;
  const Owner owner = OwnerOf(*stored);
  Owned& owned = owned_[owner];
  if (IsGap(*stored)) {
    owned.gap = stored;
    return;
  }
  if (!owned.events.empty() && !ChangesState(*owned.events.rbegin()->second, *stored))
    owned.notes.insert(sequence);
  owned.events.emplace(sequence, stored);
  owned.last_number = std::max(owned.last_number, stored->number());
  owned.stored |= stored->number() > 0;
  if (stored->number() > 0) owned.ended = IsEnded(stored->state());
}

void EventLog::Remove(int64_t sequence) {
  const auto found = events_.find(sequence);
  if (found == events_.end()) return;
  const Owner owner = OwnerOf(*found->second);
  Owned& owned = owned_[owner];
  if (owned.gap == found->second) owned.gap = nullptr;
  owned.notes.erase(sequence);
  owned.events.erase(sequence);
  // A stored job's last_number is still needed to detect new events.
  if (owned.events.empty() && owned.gap == nullptr && (!owner.first || !owned.stored)) owned_.erase(owner);
  events_.erase(found);
}

void EventLog::RemoveThrough(int64_t sequence) {
  while (!events_.empty() && events_.begin()->first <= sequence) Remove(events_.begin()->first);
  dropped_through_ = std::max(dropped_through_, sequence);
}

Events EventLog::Number(const std::vector<const v1::Job*>& jobs, Events others) const {
  Events numbered;
  MutexLock lock(&mutex_);
  for (const v1::Job* job : jobs) {
    const auto known = owned_.find({true, job->id()});
    const int64_t last = known == owned_.end() ? 0 : known->second.last_number;
    for (const v1::Job::Event& event : job->events()) {
      if (event.number() > last) numbered.emplace_back(Converted<v1::Event>(event)).set_job(job->id());
    }
  }
  for (v1::Event& event : others) numbered.push_back(std::move(event));
  int64_t sequence = next_;
  for (v1::Event& event : numbered) {
    event.set_sequence(sequence++);
    event.set_unix_nanos(EventDate(newest_loaded_nanos_, event.unix_nanos()));
  }
  return numbered;
}

void EventLog::Date(v1::Job* job) const {
  MutexLock lock(&mutex_);
  const auto known = owned_.find({true, job->id()});
  const int64_t last = known == owned_.end() ? 0 : known->second.last_number;
  for (int i = job->events_size() - 1; i >= 0 && job->events(i).number() > last; --i) {
    v1::Job::Event* const event = job->mutable_events(i);
    event->set_unix_nanos(EventDate(newest_loaded_nanos_, event->unix_nanos()));
  }
}

// Ages are relative to the older one of the current date and the newest stored date, and at most
// kMaxDropsByAge events are dropped per added one, so a clock that is ahead drops few events.
int64_t EventLog::ForgetThrough(const Events& numbered, absl::Time now) const {
  MutexLock lock(&mutex_);
  if (events_.empty()) return 0;
  const int64_t date = std::min(absl::ToUnixNanos(now), events_.rbegin()->second->unix_nanos());
  const int64_t old = date - absl::ToInt64Nanoseconds(kMaxEventAge);
  size_t by_age = kMaxDropsByAge * numbered.size();
  int64_t through = 0;
  for (auto it = events_.begin(); it != events_.end() && by_age > 0; ++it, --by_age) {
    if (it->second->unix_nanos() >= old) break;
    through = it->first;
  }
  return through;
}

void EventLog::Append(Events numbered, int64_t forget_through) {
  {
    MutexLock lock(&mutex_);
    for (v1::Event& event : numbered) Add(std::move(event));
    if (forget_through > 0) RemoveThrough(forget_through);
  }
  added_.SignalAll();
}

// Examines all owners, which is acceptable once per several hundred writes.
bool EventLog::PickFromMost(size_t wanted, size_t most, size_t live_keep, ThinnedEvents* thinned) const {
  std::vector<Candidate> heap;
  for (const auto& [owner, owned] : owned_) {
    const size_t keeps = owned.live() ? live_keep : kEventsPerEndedOwner;
    if (owned.events.size() > keeps) heap.emplace_back(owned, keeps);
  }
  std::make_heap(heap.begin(), heap.end());
  size_t picked = 0, gaps = 0;
  // A gap costs up to two changes: the new one, and the removal of the owner's old one.
  while (!heap.empty() && heap.front().excess > 0 && picked < wanted && picked + 2 * gaps + 3 <= most) {
    std::pop_heap(heap.begin(), heap.end());
    Candidate& from = heap.back();
    const EventPtr& event = from.Next();
    thinned->gone.push_back(event->sequence());
    if (from.count++ == 0) ++gaps;
    if (from.newest == nullptr || from.newest->sequence() < event->sequence()) from.newest = event;
    std::push_heap(heap.begin(), heap.end());
    ++picked;
  }
  for (const Candidate& from : heap) {
    if (from.count > 0) AddGap(from.owned->gap.get(), *from.newest, from.count, thinned);
  }
  return picked > 0;
}

bool EventLog::PickOldest(size_t wanted, size_t most, bool spare_live, ThinnedEvents* thinned) const {
  std::vector<int64_t> gone;
  v1::Event newest;
  int64_t count = 0;
  bool spared = false;
  for (const auto& [sequence, event] : events_) {
    if (gone.size() >= wanted || gone.size() + 2 >= most) break;
    if (IsSharedGap(*event)) continue;
    if (spare_live && owned_.at(OwnerOf(*event)).live()) {
      spared = true;
      continue;
    }
    gone.push_back(sequence);
    newest.set_sequence(sequence);
    newest.set_unix_nanos(event->unix_nanos());
    count += IsGap(*event) ? event->deleted_events() : 1;
  }
  if (gone.empty()) return false;
  if (!spared) {
    thinned->through = gone.back();
    return true;
  }
  thinned->gone = std::move(gone);
  const auto many = owned_.find(OwnerOf(newest));
  AddGap(many == owned_.end() ? nullptr : many->second.gap.get(), newest, count, thinned);
  return true;
}

// Four passes, each tried only if the one before finds nothing: events beyond the owners' allowances; the
// oldest of ended jobs and nodes; events of live jobs beyond the smaller allowance; the oldest of all.
ThinnedEvents EventLog::Thin(size_t most) const {
  ThinnedEvents thinned;
  MutexLock lock(&mutex_);
  if (events_.size() <= max_events_ + max_events_ / kSlack) return thinned;
  const size_t excess = events_.size() - max_events_;
  const bool picked = PickFromMost(excess, most, kMaxJobEvents, &thinned) ||
                      PickOldest(excess, most, /*spare_live=*/true, &thinned) ||
                      PickFromMost(excess, most, kEventsPerEndedOwner, &thinned);
  if (!picked) PickOldest(excess, most, /*spare_live=*/false, &thinned);
  // A gap replaces the event with its sequence, which need not be deleted separately.
  for (const v1::Event& gap : thinned.gaps)
    thinned.gone.erase(std::remove(thinned.gone.begin(), thinned.gone.end(), gap.sequence()),
                       thinned.gone.end());
  return thinned;
}

void EventLog::Forget(const ThinnedEvents& thinned) {
  MutexLock lock(&mutex_);
  for (const int64_t sequence : thinned.gone) Remove(sequence);
  for (const v1::Event& gap : thinned.gaps) {
    Remove(gap.sequence());
    Add(gap);
  }
  if (thinned.through > 0) RemoveThrough(thinned.through);
}

void EventLog::ForgetJob(const std::string& job) {
  MutexLock lock(&mutex_);
  const auto found = owned_.find({true, job});
  if (found == owned_.end()) return;
  Owned& owned = found->second;
  owned.first_sequence = next_;
  owned.last_number = 0;
  owned.stored = false;
  if (owned.events.empty() && owned.gap == nullptr) owned_.erase(found);
}

void EventLog::AddTo(v1::Job* job) const {
  // Events that an older release stored within the job are in the log too once the job has changed.
  const int64_t last = job->events().empty() ? 0 : job->events().rbegin()->number();
  for (const EventPtr& event : NewestOf(job->id())) {
    if (last < event->number()) *job->add_events() = Converted<v1::Job::Event>(*event);
  }
  BoundEvents(job);
}

// At most kMaxJobEvents, including the first: bounds the time for which writers wait.
std::vector<EventLog::EventPtr> EventLog::NewestOf(const std::string& job) const {
  MutexLock lock(&mutex_);
  std::vector<EventPtr> events;
  const auto found = owned_.find({true, job});
  if (found == owned_.end()) return events;
  const Owned& owned = found->second;
  const auto is_of_it = [](const EventPtr& event) { return event->number() > 0; };
  const auto first = owned.events.lower_bound(owned.first_sequence);
  for (auto it = owned.events.end(); it != first && events.size() < kMaxJobEvents;) {
    if (is_of_it((--it)->second)) events.push_back(it->second);
  }
  const auto oldest =
      std::find_if(first, owned.events.end(), [&](const auto& each) { return is_of_it(each.second); });
  if (!events.empty()) events.back() = oldest->second;
  std::reverse(events.begin(), events.end());
  return events;
}

// The next events in the query's order.
struct EventLog::Slice {
  std::vector<EventPtr> events;
  int64_t from = 0;   // Oldest first: no retained event is at or before it.
  bool more = false;  // There are events beyond them.
};

absl::StatusOr<EventLog::Slice> EventLog::SliceOf(const EventQuery& query, int64_t at) const {
  Slice slice;
  const int64_t after = query.newest_first ? query.after : at;
  MutexLock lock(&mutex_);
  if (after > 0 && after < dropped_through_) {
    return absl::OutOfRangeError(absl::StrCat("events after ", after, " were dropped; the oldest is ",
                                              events_.empty() ? next_ : events_.begin()->first));
  }
  auto oldest = events_.upper_bound(after);
  if (!query.newest_first) {
    slice.from = std::max(after, dropped_through_);
    for (; oldest != events_.end() && slice.events.size() < kSlice; ++oldest)
      slice.events.push_back(oldest->second);
    slice.more = oldest != events_.end();
    return slice;
  }
  auto newest = at > 0 ? events_.lower_bound(at) : events_.end();
  const bool any = newest == events_.end() || (oldest != events_.end() && oldest->first < newest->first);
  while (any && newest != oldest && slice.events.size() < kSlice) slice.events.push_back((--newest)->second);
  slice.more = any && newest != oldest;
  return slice;
}

// Does not hold the lock while the filter runs, because writers need it.
absl::StatusOr<EventPage> EventLog::Read(const EventQuery& query) const {
  EventPage page;
  size_t bytes = 0, examined = 0;
  const auto full = [&] {
    return static_cast<int>(page.events.size()) >= query.limit || bytes >= query.max_bytes ||
           examined >= query.max_examined;
  };
  const auto wants = [&](const v1::Event& event) {
    if (!MatchesQuery(query, event)) return false;
    if (query.filter == nullptr || IsGap(event)) return true;
    ++examined;
    return query.filter(event);
  };
  FSDPD_ASSIGN_OR_RETURN(Slice slice, SliceOf(query, query.newest_first ? query.before : query.after));
  page.cursor = slice.from;
  page.newest = newest();
  while (true) {
    for (const EventPtr& event : slice.events) {
      page.more = full();
      if (page.more) return page;
      page.cursor = event->sequence();
      if (!wants(*event)) continue;
      bytes += event->ByteSizeLong();
      page.events.push_back(*event);
    }
    page.more = slice.more;
    if (!slice.more || full()) return page;
    absl::StatusOr<Slice> next = SliceOf(query, page.cursor);
    // The following events were dropped meanwhile. The request for the next page reports it.
    if (!next.ok()) return page;
    slice = *std::move(next);
  }
}

int64_t EventLog::newest() const {
  MutexLock lock(&mutex_);
  return events_.empty() ? 0 : events_.rbegin()->first;
}

int64_t EventLog::oldest() const {
  MutexLock lock(&mutex_);
  return events_.empty() ? 0 : events_.begin()->first;
}

void EventLog::Await(int64_t sequence, absl::Duration timeout) const {
  MutexLock lock(&mutex_);
  if (events_.empty() || events_.rbegin()->first <= sequence)
    added_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
}

// The arena frees the copy's many parts in one step.
std::string StoredBytes(const v1::Job& job) {
  google::protobuf::Arena arena;
  v1::Job* const stored = google::protobuf::Arena::CreateMessage<v1::Job>(&arena);
  *stored = job;
  stored->clear_events();
  return stored->SerializeAsString();
}

v1::Job WithEventsOf(const EventLog& log, v1::Job job) {
  job.clear_events();
  log.AddTo(&job);
  return job;
}

void NumberOldEvents(v1::Job* job) {
  if (job->event_count() > 0) return;
  for (v1::Job::Event& event : *job->mutable_events()) {
    job->set_event_count(job->event_count() + 1);
    event.set_number(job->event_count());
  }
}

}  // namespace fsdpd
