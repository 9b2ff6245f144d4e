#include "coordinator/reconcile/slot_holders.h"

#include <algorithm>

#include "coordinator/attempt/job_pause.h"
#include "coordinator/attempt/slot_count.h"

namespace fsdpd {
namespace {

// Holds the devices of the node that are not in `held`, and leaves without preemption.
Occupant RestOf(const NodeView& node, const std::set<int>& held) {
  Occupant occupant;
  occupant.leaves = true;
  for (int device = 0; device < node.info.slots(); ++device) {
    if (held.count(device) == 0) occupant.devices[node.info.node()].push_back(device);
  }
  return occupant;
}

}  // namespace

bool IsOn(const google::protobuf::RepeatedPtrField<v1::Job::Placement>& places, const std::string& node) {
  return std::any_of(places.begin(), places.end(),
                     [&](const v1::Job::Placement& each) { return each.node() == node; });
}

std::vector<NodeSlots> SlotHolders::Slots() const {
  std::vector<const NodeView*> usable;
  std::vector<NodeSlots> disconnected;
  for (const auto& [name, view] : parts_.presence->views()) {
    if (parts_.presence->HasReported(view)) {
      usable.push_back(&view);
    } else if (parts_.presence->Of(name) != Presence::kLost) {
      disconnected.push_back(IdleSlots(view));
      disconnected.back().disconnected = true;
      disconnected.back().free_devices.clear();
    }
  }
  std::vector<NodeSlots> slots = CountSlots(usable, parts_.attempts->all());
  for (NodeSlots& node : slots) {
    if (full_nodes_.count(node.name) > 0) node.free_devices.clear();
  }
  HoldForPreflights(&slots);
  slots.insert(slots.end(), disconnected.begin(), disconnected.end());
  parts_.cordons->MarkIn(&slots);
  return slots;
}

// Marks slots as used by running preflights, which take the whole node, and by the jobs that wait for them.
void SlotHolders::HoldForPreflights(std::vector<NodeSlots>* slots) const {
  for (NodeSlots& node : *slots) {
    if (!parts_.preflights->IsMeasuring(node.name)) continue;
    node.free_devices.clear();
    node.measured = true;
  }
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kPreflight)) {
    for (const v1::Job::Placement& held : parts_.jobs->At(id).job.reserved_nodes()) {
      for (NodeSlots& node : *slots) {
        if (node.name != held.node()) continue;
        node.jobs.push_back(id);
        for (const int device : held.devices())
          node.free_devices.erase(std::remove(node.free_devices.begin(), node.free_devices.end(), device),
                                  node.free_devices.end());
      }
    }
  }
}

std::map<std::string, int> SlotHolders::CountFreeSlots() const {
  std::vector<const NodeView*> heard;
  for (const auto& [name, view] : parts_.presence->views()) {
    if (parts_.presence->HasReported(view) && !parts_.preflights->IsMeasuring(name) &&
        full_nodes_.count(name) == 0)
      heard.push_back(&view);
  }
  std::vector<HeldDevices> held;
  for (const auto& [ref, facts] : parts_.attempts->all()) {
    for (const NodePart& part : facts.parts) {
      if (!part.stopped) held.emplace_back(part.node, part.devices);
    }
  }
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kPreflight)) {
    for (const v1::Job::Placement& placement : parts_.jobs->At(id).job.reserved_nodes())
      held.emplace_back(placement.node(), placement.devices());
  }
  return CountFree(heard, held);
}

std::vector<Occupant> SlotHolders::OccupantsFor(const v1::Job& head) const {
  std::vector<Occupant> all;
  std::map<std::string, std::set<int>> held;
  for (const auto& [ref, facts] : parts_.attempts->all()) {
    Occupant occupant;
    occupant.job = ref.job;
    occupant.leaves = true;
    const LiveJob* live = parts_.jobs->Find(ref.job);
    if (live != nullptr && live->job.attempt() == ref.attempt) {
      const v1::Job& job = live->job;
      occupant.priority = job.spec().priority();
      occupant.start_unix_nanos = job.start_unix_nanos();
      occupant.leaves = !Trains(job);
      occupant.backfilled = job.backfilled() && PlaceInQueue(head) < PlaceInQueue(job);
      // A backfilled job leaves even if it cannot save: the job that reserved the slots must not wait for its
      // disk.
      occupant.may_leave =
          occupant.backfilled || (job.preemptible() && occupant.priority < head.spec().priority() &&
                                  WhyNotPaused(job, kPreemptionGraceMs).empty());
    }
    for (const NodePart& part : facts.parts) {
      if (part.stopped || part.leftover) continue;
      // The node may never answer, so no job waits for these slots.
      if (facts.GaveUpOn(part, parts_.presence->now())) {
        held[part.node].insert(part.devices.begin(), part.devices.end());
        continue;
      }
      occupant.devices[part.node] = part.devices;
    }
    all.push_back(std::move(occupant));
  }
  AddPreflights(head, &all);
  for (const Occupant& each : all) {
    for (const auto& [node, devices] : each.devices) held[node].insert(devices.begin(), devices.end());
  }
  for (const std::string& node : full_nodes_) {
    const NodeView* view = parts_.presence->Find(node);
    if (view != nullptr) all.push_back(RestOf(*view, held[node]));
  }
  return all;
}

// A job in PREFLIGHT holds slots without ranks, so it loses nothing. The preflight itself holds the node's
// other slots until it is done.
void SlotHolders::AddPreflights(const v1::Job& head, std::vector<Occupant>* all) const {
  std::map<std::string, std::set<int>> held;
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kPreflight)) {
    const LiveJob& live = parts_.jobs->At(id);
    Occupant occupant;
    occupant.job = id;
    occupant.priority = live.job.spec().priority();
    occupant.start_unix_nanos = absl::ToUnixNanos(parts_.clock->Wall());
    occupant.backfilled = live.job.backfilled() && PlaceInQueue(head) < PlaceInQueue(live.job);
    occupant.may_leave =
        occupant.backfilled || (live.job.preemptible() && occupant.priority < head.spec().priority());
    for (const v1::Job::Placement& each : live.job.reserved_nodes()) {
      occupant.devices[each.node()].assign(each.devices().begin(), each.devices().end());
      held[each.node()].insert(each.devices().begin(), each.devices().end());
    }
    all->push_back(std::move(occupant));
  }
  for (const std::string& node : parts_.preflights->Measuring()) {
    const NodeView* view = parts_.presence->Find(node);
    if (view != nullptr && parts_.presence->Of(node) != Presence::kLost)
      all->push_back(RestOf(*view, held[node]));
  }
}

std::vector<std::string> SlotHolders::JobsOn(const std::string& node) const {
  std::set<std::string> jobs;
  for (const auto& [ref, facts] : parts_.attempts->all()) {
    for (const NodePart& part : facts.parts) {
      if (part.node == node && !part.stopped) jobs.insert(ref.job);
    }
  }
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kPreflight)) {
    if (IsOn(parts_.jobs->At(id).job.reserved_nodes(), node)) jobs.insert(id);
  }
  return {jobs.begin(), jobs.end()};
}

bool SlotHolders::HasNothing(const std::string& node) const {
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kPreflight)) {
    if (IsOn(parts_.jobs->At(id).job.reserved_nodes(), node)) return false;
  }
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kLaunched)) {
    const v1::Job& job = parts_.jobs->At(id).job;
    if (Trains(job) && IsOn(job.placements(), node)) return false;
  }
  // Preflight ranks belong to no job, but use the node's devices.
  return parts_.attempts->IsIdle(node) && !parts_.preflights->IsMeasuring(node);
}

}  // namespace fsdpd
