// Book of attempts whose ranks may still run: opens an attempt at its launch, keeps the facts about it
// (attempt_facts.h), sends launches and stops until agents answer, and closes it when no node has ranks of
// it. An attempt outlives its job if nodes do not confirm its end. Attempts that only an agent reports
// (leftovers) are in the book too, and are being stopped.
//
// REQUIRES: a change of the job is stored before the order that follows from it: Launch() stores it itself,
// callers of BeginStop() call JobTable::Commit() first. Call order: Load() for each job with an attempt, then
// per tick events, AdvanceStops(), queries. Not thread-safe except hosts(): used only by the reconciler's
// thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <map>
#include <set>
#include <string>

#include "base/clock.h"
#include "coordinator/attempt/attempt_facts.h"
#include "coordinator/attempt/attempt_hosts.h"
#include "coordinator/attempt/rendezvous.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/schedule/placer.h"

namespace fsdpd {

// Between SIGTERM and SIGKILL, for ranks of a job that failed or ended.
constexpr int64_t kStopGraceMs = 10000;
// Grace of a preemption, the default of a user's pause: ranks leave as soon as they have saved.
constexpr int64_t kPreemptionGraceMs = 600000;

bool Trains(const v1::Job& job);  // STARTING or RUNNING.

class AttemptBook {
 public:
  struct Parts {
    JobTable* jobs;
    const NodePresence* presence;
    NodeRegistry* nodes;
    Rendezvous* rendezvous;
    const Clock* clock;
  };
  // Attempts that an agent reports when it registers, with their ranks.
  using Hosted = std::map<AttemptRef, std::set<int>>;

  explicit AttemptBook(Parts parts) : parts_(parts) {}

  const std::map<AttemptRef, AttemptFacts>& all() const { return attempts_; }
  std::map<AttemptRef, AttemptFacts>& all() { return attempts_; }
  const AttemptHosts& hosts() const { return hosts_; }  // Any thread.
  AttemptFacts* Find(const AttemptRef& ref);            // Null: not in the book.
  AttemptFacts* Find(const v1::Job& job) { return Find(AttemptRef{job.id(), job.attempt()}); }
  bool IsCurrent(const AttemptRef& ref) const;  // The current attempt of a live job.

  // Continues an attempt that a previous process of the coordinator launched.
  void Load(const v1::Job& job);
  // Stores the launch, then sends it to the nodes of `decision`. An error changes nothing.
  absl::Status Launch(LiveJob* live, const PlaceDecision& decision, bool backfilled);
  // For a job with ranks of earlier attempts only: opens its newest attempt, as gone.
  AttemptFacts* OpenGone(const v1::Job& job);
  void BeginStop(AttemptFacts* facts, int64_t grace_ms, const std::string& reason, bool save = false);
  void SendLocate(const AttemptFacts& facts, const std::string& reason);

  // An agent registered. Updates the attempts with a part on its node, and sends the launches and stops that
  // it lacks. Removes these attempts from `hosted`, and returns how many leftovers the node has.
  int OnAttached(const v1::Register& info, Hosted* hosted);
  // The agent hosts an attempt that is not placed there now: adds it, and stops it by `order` or as its other
  // nodes. Until `awaited_until` the job's next launch waits for its end. `placed`: the job was placed there.
  void AddLeftover(const AttemptRef& ref, const std::string& node, const StopOrder& order, bool placed,
                   absl::Time awaited_until);
  // Sends a stop of an attempt that stays out of the book.
  void SendRefusal(const AttemptRef& ref, const std::string& node, const std::string& why);
  // Until `time`, ranks of such attempts may run on the node.
  void HoldForRefused(const std::string& node, absl::Time time) { refused_until_[node] = time; }
  void ForgetNode(const std::string& node) { refused_until_.erase(node); }

  // Restarts all waits after the coordinator was suspended.
  void RestartWaits();
  // Resends launches and stops that were not answered, and closes attempts that are over.
  void AdvanceStops();

  // Why the job must not be launched: ranks of earlier attempts may be alive, for example on a lost node that
  // reconnected with them. "" otherwise.
  std::string LeftoversOf(const std::string& job) const;
  bool IsIdle(const std::string& node) const;  // No attempt has a part there.
  bool HasRefusedRanks(const std::string& node) const;
  // Nodes whose slots all count as taken, because it is unknown which ones are in use.
  std::set<std::string> FullNodes() const;

 private:
  using Attempts = std::map<AttemptRef, AttemptFacts>;

  AttemptFacts& Open(const v1::Job& job, bool recovered);
  Attempts::iterator Close(Attempts::iterator it);  // Returns the next one.
  void KeepUnconfirmed(const AttemptFacts& facts);
  void SendLaunch(const v1::Job& job, NodePart* part, bool again = false);
  void ResendLaunches(AttemptFacts* facts);
  void SendStop(const AttemptFacts& facts, const NodePart& part);

  const Parts parts_;
  Attempts attempts_;
  AttemptHosts hosts_;
  // By node: until when ranks may still run there that were not placed and were ordered to stop.
  std::map<std::string, absl::Time> refused_until_;
};

}  // namespace fsdpd
