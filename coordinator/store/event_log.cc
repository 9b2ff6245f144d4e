#include "coordinator/store/event_log.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "coordinator/job_machine.h"

namespace fsdpd {
namespace {

// For each that comes. A clock that is wrong for a moment, as before a machine has heard the date, takes away
// no more than that.
constexpr size_t kForgottenByAge = 2;

v1::Event LoggedEvent(const std::string& job, const v1::Job::Event& of_job) {
  v1::Event event;
  event.set_job(job);
  event.set_unix_nanos(of_job.unix_nanos());
  event.set_kind(of_job.kind());
  event.set_node(of_job.node());
  event.set_attempt(of_job.attempt());
  event.set_state(of_job.state());
  event.set_cause(of_job.cause());
  event.set_message(of_job.message());
  event.set_number(of_job.number());
  return event;
}

v1::Job::Event EventOfJob(const v1::Event& event) {
  v1::Job::Event of_job;
  of_job.set_unix_nanos(event.unix_nanos());
  of_job.set_state(event.state());
  of_job.set_message(event.message());
  of_job.set_kind(event.kind());
  of_job.set_number(event.number());
  of_job.set_attempt(event.attempt());
  of_job.set_node(event.node());
  of_job.set_cause(event.cause());
  return of_job;
}

bool Wants(const EventQuery& query, const v1::Event& event) {
  return (query.job.empty() || event.job() == query.job) &&
         (query.node.empty() || event.node() == query.node) && event.unix_nanos() >= query.since_nanos;
}

}  // namespace

void EventLog::Load(Events stored, int64_t first) {
  MutexLock lock(&mutex_);
  for (v1::Event& event : stored) Add(std::move(event));
  // What was dropped before this life is not known; nothing is missing after the first that is kept.
  gone_through_ = events_.empty() ? 0 : events_.front()->sequence() - 1;
  next_ = std::max(next_, first);
}

void EventLog::Add(v1::Event event) {
  next_ = event.sequence() + 1;
  const auto kept = std::make_shared<const v1::Event>(std::move(event));
  events_.push_back(kept);
  if (kept->number() == 0) return;
  OfJob& job = jobs_[kept->job()];
  job.last_number = std::max(job.last_number, kept->number());
  job.events.push_back(kept);
}

Events EventLog::Number(const std::vector<const v1::Job*>& jobs, Events others) const {
  Events numbered;
  MutexLock lock(&mutex_);
  for (const v1::Job* job : jobs) {
    const auto known = jobs_.find(job->id());
    const int64_t last = known == jobs_.end() ? 0 : known->second.last_number;
    for (const v1::Job::Event& event : job->events()) {
      if (event.number() > last) numbered.push_back(LoggedEvent(job->id(), event));
    }
  }
  for (v1::Event& event : others) numbered.push_back(std::move(event));
  int64_t sequence = next_;
  for (v1::Event& event : numbered) event.set_sequence(sequence++);
  return numbered;
}

int64_t EventLog::ForgetThrough(const Events& numbered, absl::Time now) const {
  MutexLock lock(&mutex_);
  if (events_.empty()) return 0;
  const int64_t date = std::min(absl::ToUnixNanos(now), events_.back()->unix_nanos());
  const int64_t old = date - absl::ToInt64Nanoseconds(kMaxEventAge);
  size_t keeps = events_.size() + numbered.size();
  size_t by_age = kForgottenByAge * numbered.size();
  int64_t through = 0;
  for (const Kept& event : events_) {
    if (keeps <= max_events_ && (by_age == 0 || event->unix_nanos() >= old)) break;
    if (keeps <= max_events_) --by_age;
    through = event->sequence();
    --keeps;
  }
  return through;
}

void EventLog::Append(Events numbered, int64_t forget_through) {
  {
    MutexLock lock(&mutex_);
    for (v1::Event& event : numbered) Add(std::move(event));
    while (!events_.empty() && events_.front()->sequence() <= forget_through) {
      const auto job = jobs_.find(events_.front()->job());
      if (job != jobs_.end() && !job->second.events.empty() && job->second.events.front() == events_.front())
        job->second.events.pop_front();
      events_.pop_front();
    }
    gone_through_ = std::max(gone_through_, forget_through);
  }
  added_.SignalAll();
}

void EventLog::ForgetJob(const std::string& job) {
  MutexLock lock(&mutex_);
  jobs_.erase(job);
}

void EventLog::AddTo(v1::Job* job) const {
  // Those that the job was stored with are in the log too, once it has changed since.
  const int64_t last = job->events().empty() ? 0 : job->events().rbegin()->number();
  for (const Kept& event : NewestOf(job->id())) {
    if (last < event->number()) *job->add_events() = EventOfJob(*event);
  }
  BoundEvents(job);
}

// As many as a job has at most, the first among them: who adds to the log waits for no more than that.
std::vector<EventLog::Kept> EventLog::NewestOf(const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return {};
  const std::deque<Kept>& all = found->second.events;
  if (all.size() <= kMaxJobEvents) return {all.begin(), all.end()};
  std::vector<Kept> kept = {all.front()};
  kept.insert(kept.end(), all.end() - (kMaxJobEvents - 1), all.end());
  return kept;
}

absl::StatusOr<EventPage> EventLog::Read(const EventQuery& query) const {
  EventPage page;
  MutexLock lock(&mutex_);
  if (query.after > 0 && query.after < gone_through_) {
    return absl::OutOfRangeError(absl::StrCat("events after ", query.after,
                                              " are kept no more: the oldest is ",
                                              events_.empty() ? next_ : events_.front()->sequence()));
  }
  auto it =
      std::upper_bound(events_.begin(), events_.end(), query.after,
                       [](int64_t sequence, const Kept& event) { return sequence < event->sequence(); });
  page.cursor = std::max(query.after, gone_through_);
  size_t bytes = 0;
  const auto full = [&] {
    return static_cast<int>(page.events.size()) >= query.limit || bytes >= query.max_bytes;
  };
  for (; it != events_.end() && !full(); ++it) {
    page.cursor = (*it)->sequence();
    if (!Wants(query, **it)) continue;
    bytes += (*it)->ByteSizeLong();
    page.events.push_back(**it);
  }
  page.more = it != events_.end();
  return page;
}

int64_t EventLog::newest() const {
  MutexLock lock(&mutex_);
  return events_.empty() ? 0 : events_.back()->sequence();
}

int64_t EventLog::oldest() const {
  MutexLock lock(&mutex_);
  return events_.empty() ? 0 : events_.front()->sequence();
}

void EventLog::Await(int64_t sequence, absl::Duration timeout) const {
  MutexLock lock(&mutex_);
  if (events_.empty() || events_.back()->sequence() <= sequence)
    added_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
}

std::string StoredBytes(const v1::Job& job) {
  v1::Job stored = job;
  stored.clear_events();
  return stored.SerializeAsString();
}

void NumberOldEvents(v1::Job* job) {
  if (job->event_count() > 0) return;
  for (v1::Job::Event& event : *job->mutable_events()) {
    job->set_event_count(job->event_count() + 1);
    event.set_number(job->event_count());
  }
}

}  // namespace fsdpd
