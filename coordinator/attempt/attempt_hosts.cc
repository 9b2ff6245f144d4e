#include "coordinator/attempt/attempt_hosts.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "base/limits.h"
#include "base/lookup.h"

namespace fsdpd {
namespace {

// 0 if absent.
int NewestAttemptOn(const std::string& node, const v1::Job& job) {
  for (const v1::Job::Placement& placement : job.placements()) {
    if (placement.node() == node) return job.attempt();
  }
  for (const v1::Job::EarlierHost& host : job.earlier_hosts()) {
    if (host.node() == node) return host.attempt();
  }
  return 0;
}

}  // namespace

Hosting HostingOf(const v1::Job& job, const std::string& node, int attempt, int newest) {
  const int newest_there = NewestAttemptOn(node, job);
  if (newest_there == 0) return Hosting::kNone;
  if (attempt <= newest_there) return Hosting::kPlaced;
  return attempt > job.attempt() && attempt <= newest ? Hosting::kAhead : Hosting::kNone;
}

void KeepEarlierHosts(int attempt, v1::Job* job) {
  std::set<std::string> newer;
  for (const v1::Job::Placement& placement : job->placements()) newer.insert(placement.node());
  auto* hosts = job->mutable_earlier_hosts();
  const auto is_newer = [&](const v1::Job::EarlierHost& host) { return newer.count(host.node()) > 0; };
  hosts->erase(std::remove_if(hosts->begin(), hosts->end(), is_newer), hosts->end());
  for (const v1::Job::Placement& placement : job->placements()) {
    v1::Job::EarlierHost* host = hosts->Add();
    host->set_node(placement.node());
    host->set_attempt(attempt);
  }
  if (hosts->size() > kMaxEarlierHosts) hosts->DeleteSubrange(0, hosts->size() - kMaxEarlierHosts);
}

void AttemptHosts::Open(const AttemptFacts& facts) {
  std::map<std::string, Host> hosts;
  for (const NodePart& part : facts.parts) hosts[part.node] = {part.first_rank, part.ranks};
  MutexLock lock(&mutex_);
  attempts_[facts.ref] = {std::move(hosts), /*placements_known=*/true};
}

// The job's record does not contain the ranks of an earlier attempt on this node.
void AttemptHosts::AddLeftover(const AttemptRef& attempt, const std::string& node, bool placed) {
  // With unknown ranks, `placed` nodes may report on any rank (0 .. kMaxWorld - 1). try_emplace: known
  // placements take precedence.
  MutexLock lock(&mutex_);
  attempts_[attempt].hosts.try_emplace(node, Host{0, placed ? kMaxWorld : 0});
}

void AttemptHosts::Close(const AttemptRef& attempt) {
  MutexLock lock(&mutex_);
  attempts_.erase(attempt);
}

AttemptHosts::FilterResult AttemptHosts::FilterFor(const std::string& node, const AttemptRef& attempt,
                                                   absl::FunctionRef<bool(const Host&)> takes) const {
  MutexLock lock(&mutex_);
  const auto known = attempts_.find(attempt);
  if (known == attempts_.end()) return FilterResult::kStale;
  const auto host = known->second.hosts.find(node);
  if (host == known->second.hosts.end())
    return known->second.placements_known ? FilterResult::kRefused : FilterResult::kStale;
  if (takes(host->second)) return FilterResult::kTaken;
  // ranks == 0: a leftover, from which only Stopped counts; its other messages are stale, not forged.
  return host->second.ranks == 0 ? FilterResult::kStale : FilterResult::kRefused;
}

AttemptHosts::FilterResult AttemptHosts::Filter(const std::string& node, v1::AgentMessage* message) const {
  const auto of_attempt = [&](const auto& about, absl::FunctionRef<bool(const Host&)> takes) {
    return FilterFor(node, {about.job_id(), about.attempt()}, takes);
  };
  const auto of_rank = [&](const auto& about, int rank) {
    return of_attempt(about, [rank](const Host& host) {
      return rank >= host.first_rank && int64_t{rank} < int64_t{host.first_rank} + host.ranks;
    });
  };
  const auto has_ranks = [](const Host& host) { return host.ranks > 0; };
  switch (message->body_case()) {
    case v1::AgentMessage::kRank:
      return of_rank(message->rank(), message->rank().rank());
    case v1::AgentMessage::kTraceResult:
      return of_rank(message->trace_result(), message->trace_result().rank());
    case v1::AgentMessage::kStopped:
      return of_attempt(message->stopped(), [](const Host&) { return true; });
    case v1::AgentMessage::kRendezvousSet:
      return of_attempt(message->rendezvous_set(), has_ranks);
    case v1::AgentMessage::kRendezvousGet:
      return of_attempt(message->rendezvous_get(), has_ranks);
    case v1::AgentMessage::kHeartbeat: {
      FilterResult word = FilterResult::kTaken;
      // Removes entries of other nodes' ranks. Stale entries are removed silently; refused ones are reported.
      for (v1::ComputeTimes& times : *message->mutable_heartbeat()->mutable_compute_times()) {
        const auto drops = [&](const v1::ComputeTimes::Rank& rank) {
          const FilterResult each = of_rank(times, rank.rank());
          if (each == FilterResult::kRefused) word = each;
          return each != FilterResult::kTaken;
        };
        auto* ranks = times.mutable_ranks();
        ranks->erase(std::remove_if(ranks->begin(), ranks->end(), drops), ranks->end());
      }
      return word;
    }
    default:
      return FilterResult::kTaken;  // Belongs to no attempt, or answers a request of this stream.
  }
}

const char* RefusedKindOf(const v1::AgentMessage& message) {
  constexpr std::pair<v1::AgentMessage::BodyCase, const char*> kKinds[] = {
      {v1::AgentMessage::kRegister, "registration"},
      {v1::AgentMessage::kHeartbeat, "compute_times"},
      {v1::AgentMessage::kLogs, "log"},
      {v1::AgentMessage::kPreflight, "preflight"},
      {v1::AgentMessage::kStopped, "stopped"},
      {v1::AgentMessage::kTraceResult, "trace"},
      {v1::AgentMessage::kRendezvousSet, "rendezvous"},
      {v1::AgentMessage::kRendezvousGet, "rendezvous"}};
  return Lookup(kKinds, message.body_case(), "rank");
}

}  // namespace fsdpd
