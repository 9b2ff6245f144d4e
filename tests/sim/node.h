// Simulated machine with an agent: the real logic of the agent (AgentFlow, RankSupervisor, Attachment,
// Outbox, undelivered.h) with simulated ranks and network. It is killed, suspended, terminated and restarted.
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
  void Kill();                           // kill -9, or a power loss.
  void Drain();                          // SIGTERM: ranks save and exit, and undelivered messages are stored.
  void Suspend(absl::Duration time);     // SIGSTOP, SIGCONT.
  void Disconnect(absl::Duration time);  // No traffic; each end times out independently.
  void BreakStream();
  void Heal();
  void TearUndelivered();  // Truncates the file of undelivered messages.

  const std::string& name() const { return name_; }
  int slots() const { return slots_; }
  bool up() const { return life_ != nullptr; }
  bool disconnected() const { return world_->now() < disconnected_until_; }
  bool suspended() const { return world_->now() < suspended_until_; }
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
  absl::Time disconnected_until_ = absl::InfinitePast();
  absl::Time suspended_until_ = absl::InfinitePast();
  int lives_ = 0;
  std::shared_ptr<AgentLife> life_;
};

}  // namespace fsdpd::sim
