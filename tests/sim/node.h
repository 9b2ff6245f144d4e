// A machine with an agent: the agent's own logic (AgentFlow, RankSupervisor, Attachment, Outbox,
// undelivered.h) over ranks and a network that are simulated. It is killed, stopped, told to end and started
// again as a machine's is.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tests/sim/ranks.h"
#include "tests/sim/stream.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

class Coordinator;
struct AgentLife;

class Node {
 public:
  Node(World* world, Ranks* ranks, Coordinator* coordinator, std::string name, int slots,
       const std::string& directory);
  ~Node();

  void Start();
  void Kill();                           // kill -9, or the machine's power.
  void Drain();                          // SIGTERM: ranks save and leave, and what is undelivered is kept.
  void StandStill(absl::Duration time);  // SIGSTOP, SIGCONT.
  void Cut(absl::Duration time);         // Nothing passes; both ends give up in their own time.
  void BreakStream();
  void Heal();
  void TearUndelivered();  // The file that an agent before left is cut.

  const std::string& name() const { return name_; }
  int slots() const { return slots_; }
  bool up() const { return life_ != nullptr; }
  bool cut() const { return world_->now() < cut_until_; }
  bool still() const { return world_->now() < still_until_; }
  bool idle() const;
  MachineClock* clock() { return &clock_; }
  Stream* stream();

 private:
  friend struct AgentLife;
  void Kick();
  void StartLater(absl::Duration least, absl::Duration most);

  World* const world_;
  Ranks* const ranks_;
  Coordinator* const coordinator_;
  const std::string name_;
  const int slots_;
  const std::string work_dir_;
  MachineClock clock_;
  absl::Time cut_until_ = absl::InfinitePast();
  absl::Time still_until_ = absl::InfinitePast();
  int lives_ = 0;
  std::shared_ptr<AgentLife> life_;
};

}  // namespace fsdpd::sim
