// Registry of which nodes host which ranks of which attempts: the trust boundary between nodes. A report
// about an attempt counts only if the coordinator placed that attempt, or that rank of it, on this node.
// AgentSession calls Filter() before any other code sees a message. HostingOf() judges what a registration
// claims to host, from the job's stored record.
//
// The reconciler opens an attempt before it sends the launch, and closes it when no node has a process of it
// left. A message about an attempt that is not open is stale.
//
// Thread-safe.
#pragma once

#include <absl/functional/function_ref.h>

#include <map>
#include <string>

#include "base/mutex.h"
#include "coordinator/attempt/attempt_facts.h"
#include "coordinator/job/attempt_ref.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Nodes retained per job; those of the oldest attempts are dropped first.
constexpr int kMaxEarlierHosts = 1024;

enum class Hosting {
  kNone,    // The job was not placed on that node, or the attempt is out of range.
  kPlaced,  // The attempt, or a later one, was placed there.
  kAhead,   // The job was placed there, and the attempt is newer than the record, but not than `newest`.
};
// `newest`: the newest attempt of the job that an agent can host.
Hosting HostingOf(const v1::Job& job, const std::string& node, int attempt, int newest);

// Saves the placements of `attempt` in Job.earlier_hosts. REQUIRES: the job still has them.
void KeepEarlierHosts(int attempt, v1::Job* job);

class AttemptHosts {
 public:
  enum class FilterResult { kTaken, kStale, kRefused };

  // Registers the placements of `facts`; replaces earlier data of the attempt.
  void Open(const AttemptFacts& facts);
  // Adds a node that registered with an attempt that must stop there. Unless the job was `placed` there, only
  // its report that no process of the attempt is left counts.
  void AddLeftover(const AttemptRef& attempt, const std::string& node, bool placed);
  void Close(const AttemptRef& attempt);

  // Whether the coordinator takes `message` from `node`. Rejected compute times are removed from a heartbeat;
  // kRefused then means that there were some, and the rest of the heartbeat must still be taken.
  FilterResult Filter(const std::string& node, v1::AgentMessage* message) const;

 private:
  struct Host {
    int first_rank = 0;
    int ranks = 0;  // 0: only its Stopped is taken; other messages are stale.
  };
  struct Attempt {
    std::map<std::string, Host> hosts;
    bool placements_known = false;  // If false, other nodes may host it too: their messages are stale.
  };

  // kTaken if the attempt is open on `node` and `takes` returns true.
  FilterResult FilterFor(const std::string& node, const AttemptRef& attempt,
                         absl::FunctionRef<bool(const Host&)> takes) const;

  mutable Mutex mutex_;
  std::map<AttemptRef, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);
};

// The kind of `message` among kRefusedKinds (meters.h).
const char* RefusedKindOf(const v1::AgentMessage& message);

}  // namespace fsdpd
