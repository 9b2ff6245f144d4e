// Simulated machine of the coordinator. It runs all of fsdpd-coordinator except gRPC (ApiHandlers,
// AgentSession, Reconciler with its registry, board, rendezvous and plans, SqliteStore) without threads, on a
// simulated disk and network. It is killed, also during a write, stopped and restarted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/api/api_handlers.h"
#include "tests/sim/faulty_disk.h"
#include "tests/sim/referee.h"
#include "tests/sim/stream.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

struct CoordinatorLife;

class Coordinator {
 public:
  Coordinator(World* world, Referee* referee, std::string state_dir);
  ~Coordinator();

  void Start();
  void Kill();                        // Immediately.
  void KillInAWrite(int operations);  // At the n-th operation on its disk.
  void Stop();                        // Orderly shutdown; restarts later.
  void Suspend(absl::Duration time);  // SIGSTOP, SIGCONT.
  void Heal();
  void SetDiskFull(bool full);

  bool listens() const { return life_ != nullptr; }
  bool suspended() const { return world_->now() < suspended_until_; }
  void Accept(const std::shared_ptr<Stream>& stream);

  // Runs a client's call. Returns false if there is no reply: the coordinator is down, or dies during the
  // call.
  bool Call(const std::function<void(ApiHandlers* api)>& call);
  JobBoard* board();
  std::vector<std::string> CordonedNodes() const;
  const RanksByProject& quotas() const { return quotas_; }
  MachineClock* clock() { return &clock_; }

 private:
  friend struct CoordinatorLife;
  absl::Status RememberNodes();
  void AfterUse();
  void OnDeath();
  void TickSoon(absl::Duration wait);
  void Tick();

  World* const world_;
  Referee* const referee_;
  const std::string state_dir_;
  const absl::Duration tick_;
  const bool measures_;  // Requests preflights.
  const RanksByProject quotas_;
  MachineClock clock_;
  FaultyDisk disk_;
  absl::Time suspended_until_ = absl::InfinitePast();
  absl::Time next_tick_ = absl::InfiniteFuture();
  bool busy_ = false;  // During a tick or a call.
  int jobs_ = 0;
  std::shared_ptr<CoordinatorLife> life_;
};

}  // namespace fsdpd::sim
