#include "agent/link/outbox.h"

#include <algorithm>
#include <utility>

namespace fsdpd {
namespace {

// Longer than any tick or transaction of the coordinator, and short enough to retain few messages.
constexpr absl::Duration kSettleTime = absl::Seconds(30);

}  // namespace

void Outbox::Add(Kind kind, v1::AgentMessage message) {
  if (kind == Kind::kLifecycle) ++waiting_lifecycle_;
  entries_.emplace(next_ticket_++, Entry{kind, std::move(message)});
}

void Outbox::AddSaved(v1::AgentMessage message) {
  const v1::RankUpdate& added = message.rank();
  const auto alike = [&](const Entry& entry) {
    const v1::RankUpdate& kept = entry.message.rank();
    return entry.kind == Kind::kSaved && kept.job_id() == added.job_id() &&
           kept.attempt() == added.attempt() && kept.saved().error().empty() == added.saved().error().empty();
  };
  int others = 0;
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (!alike(it->second)) continue;
    if (others++ == 0) oldest = it;
  }
  if (others >= kMaxKnownCheckpoints) Erase(oldest);
  Add(Kind::kSaved, std::move(message));
}

void Outbox::DropTimeline(const std::string& job_id) {
  const auto waits = std::find_if(entries_.begin(), entries_.end(), [&](const auto& each) {
    const v1::RankUpdate& update = each.second.message.rank();
    return update.has_timeline() && update.job_id() == job_id;
  });
  if (waits != entries_.end()) Erase(waits);
}

void Outbox::AddStep(v1::AgentMessage message) {
  if (message.rank().has_timeline()) DropTimeline(message.rank().job_id());
  if (waiting_steps_ >= max_steps_) {
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.kind != Kind::kStep) continue;
      Erase(it);
      ++dropped_steps_;
      break;
    }
  }
  Add(Kind::kStep, std::move(message));
  ++waiting_steps_;
}

void Outbox::AddLogs(v1::AgentMessage message) {
  Add(Kind::kLogs, std::move(message));
  ++waiting_logs_;
}

Outbox::Entries::iterator Outbox::Erase(Entries::iterator entry) {
  if (entry->second.kind == Kind::kLifecycle) --waiting_lifecycle_;
  if (entry->second.kind == Kind::kStep) --waiting_steps_;
  if (entry->second.kind == Kind::kLogs) --waiting_logs_;
  return entries_.erase(entry);
}

void Outbox::ForgetGet(int64_t request) {
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const v1::AgentMessage& m = it->second.message;
    if (m.has_rendezvous_get() && m.rendezvous_get().request() == request) {
      Erase(it);
      return;
    }
  }
}

void Outbox::ForgetRendezvous(const AttemptId& attempt) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const v1::AgentMessage& m = it->second.message;
    const bool set = m.has_rendezvous_set() && m.rendezvous_set().job_id() == attempt.job_id &&
                     m.rendezvous_set().attempt() == attempt.attempt;
    const bool get = m.has_rendezvous_get() && m.rendezvous_get().job_id() == attempt.job_id &&
                     m.rendezvous_get().attempt() == attempt.attempt;
    it = set || get ? Erase(it) : std::next(it);
  }
}

bool Outbox::Next(v1::AgentMessage* message, int64_t* ticket) const {
  const auto it = entries_.lower_bound(cursor_);
  if (it == entries_.end()) return false;
  *ticket = it->first;
  *message = it->second.message;
  return true;
}

void Outbox::Sent(int64_t ticket, absl::Time now) {
  cursor_ = ticket + 1;
  const auto it = entries_.find(ticket);
  if (it == entries_.end()) return;  // Forgotten or dropped during the write.
  const bool once = it->second.kind == Kind::kStep || it->second.kind == Kind::kLogs;
  if (once) {
    Erase(it);
  } else {
    it->second.sent = now;
  }
}

void Outbox::NewStream() {
  cursor_ = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    it->second.sent = absl::InfiniteFuture();
    it = it->second.kind == Kind::kLogs ? Erase(it) : std::next(it);
  }
}

void Outbox::Settle(absl::Time now) {
  // While this process was suspended, it could not observe whether the stream was up.
  const absl::Duration unseen = suspensions_.SuspendedFor(now);
  for (auto it = entries_.begin(); it != entries_.end();) {
    it->second.sent += unseen;
    const bool settles = it->second.kind == Kind::kLifecycle || it->second.kind == Kind::kSaved;
    const bool settled = settles && it->second.sent + kSettleTime <= now;
    it = settled ? Erase(it) : std::next(it);
  }
}

std::vector<v1::AgentMessage> Outbox::Undelivered() const {
  std::vector<v1::AgentMessage> undelivered;
  for (const auto& [ticket, entry] : entries_) {
    const bool ends = entry.kind == Kind::kLifecycle && !entry.message.has_preflight();
    const bool matters = ends || entry.kind == Kind::kSaved;
    if (matters && entry.sent == absl::InfiniteFuture()) undelivered.push_back(entry.message);
  }
  return undelivered;
}

std::vector<RankId> Outbox::RetainedExits() const {
  std::vector<RankId> ranks;
  for (const auto& [ticket, entry] : entries_) {
    const v1::RankUpdate& update = entry.message.rank();
    if (update.has_exit()) ranks.push_back({{update.job_id(), update.attempt()}, update.rank()});
  }
  return ranks;
}

}  // namespace fsdpd
