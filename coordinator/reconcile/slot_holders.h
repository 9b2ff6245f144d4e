// Holders of slots: which jobs, attempts, leftovers and preflights hold the slots of each node, and which
// slots are free. A slot has at most one holder that is placed there. If it is unknown which slots of a node
// are in use, all of them count as held.
//
// Call order: ReadFullNodes() per tick, after the stops; then queries. Not thread-safe: used only by the
// reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/nodes/cordons.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/reconcile/preflight_runner.h"
#include "coordinator/schedule/placer.h"
#include "coordinator/schedule/preemption.h"

namespace fsdpd {

class SlotHolders {
 public:
  struct Parts {
    const JobTable* jobs;
    const NodePresence* presence;
    const AttemptBook* attempts;
    const PreflightRunner* preflights;
    const Cordons* cordons;
    const Clock* clock;
  };

  explicit SlotHolders(Parts parts) : parts_(parts) {}

  void ReadFullNodes() { full_nodes_ = parts_.attempts->FullNodes(); }

  // Nodes that are connected, or were a moment ago.
  std::vector<NodeSlots> Slots() const;
  std::map<std::string, int> CountFreeSlots() const;  // By node, for readers.
  // Holders of slots that `head` may wait for. Sets `may_leave` only for jobs whose slots it may take.
  std::vector<Occupant> OccupantsFor(const v1::Job& head) const;
  std::vector<std::string> JobsOn(const std::string& node) const;  // With ranks or reserved slots, by id.
  // Neither a job that trains or is about to, nor ranks of any attempt or preflight.
  bool HasNothing(const std::string& node) const;

 private:
  void HoldForPreflights(std::vector<NodeSlots>* slots) const;
  void AddPreflights(const v1::Job& head, std::vector<Occupant>* all) const;

  const Parts parts_;
  std::set<std::string> full_nodes_;
};

bool IsOn(const google::protobuf::RepeatedPtrField<v1::Job::Placement>& places, const std::string& node);

}  // namespace fsdpd
