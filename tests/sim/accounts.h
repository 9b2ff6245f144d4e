// Checks of a job's own records: its newest event has the job's state; the feed of all events has each event
// once and in order, also across restarts; and its ledger assigns each second since admission to one cause.
// Part of the invariant checker (referee.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/store/event_log.h"
#include "proto/fsdpd/v1/coordinator.pb.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

class Accounts {
 public:
  explicit Accounts(World* world) : world_(world) {}

  // A run of the coordinator, and its event feed.
  void Begins(const EventLog* feed);
  void Ends() { feed_ = nullptr; }
  // The coordinator's date was changed: ledgers of its next run are not checked across the change.
  void DateSet() { date_set_ = true; }
  void Retried(const std::string& id) { since_.erase(id); }

  void Stored(const v1::Job& job);
  void Shown(const v1::Job& job) { CheckLedger(job); }
  void ReadFeed();

 private:
  void CheckEvents(const v1::Job& job);
  void CheckLedger(const v1::Job& job);

  World* const world_;
  const EventLog* feed_ = nullptr;
  int64_t cursor_ = 0;
  std::map<std::string, int64_t> newest_in_feed_;  // The newest event number of each job in the feed.
  bool date_set_ = false;
  std::map<std::string, double> since_;  // Begin of each job's accounted time, derived from its ledger.
};

}  // namespace fsdpd::sim
