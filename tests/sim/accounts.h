// What a job's own records must say, judged from outside as the referee's rules are: its events tell of each
// state that it has come to, the feed of all events has each of them once and in order, over lives too, and
// of its ledger each second since its admission is of one cause.
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

  // A life of the coordinator, and its feed.
  void Begins(const EventLog* feed);
  void Ends() { feed_ = nullptr; }
  // Somebody sets the coordinator's date: what its next life makes of it is no second of anything.
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
  std::map<std::string, int64_t> told_;  // The newest of each job's events that the feed has told.
  bool date_set_ = false;
  std::map<std::string, double> since_;  // Since when each job's time is accounted for, as its ledger has it.
};

}  // namespace fsdpd::sim
