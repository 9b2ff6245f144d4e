// The machine of the coordinator: all of fsdpd-coordinator but gRPC (JobService, AgentSession, Reconciler
// with its registry, board, rendezvous and plans, SqliteStore), without threads, over a disk and a network
// that are simulated. It is killed, also in the middle of a write, stopped and started again.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/job_service.h"
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
  void Kill();                           // At once.
  void KillInAWrite(int operations);     // At the n-th thing that it does to its disk.
  void Stop();                           // In order; it starts again.
  void StandStill(absl::Duration time);  // SIGSTOP, SIGCONT.
  void Heal();
  void SetDiskFull(bool full);

  bool listens() const { return life_ != nullptr; }
  bool still() const { return world_->now() < still_until_; }
  void Accept(const std::shared_ptr<Stream>& stream);

  // A client's call, which is answered unless the coordinator is away or dies in it: then it is false.
  bool Call(const std::function<void(JobService* service)>& call);
  JobBoard* board();
  std::vector<std::string> CordonedNodes() const;
  const RanksByProject& quotas() const { return quotas_; }
  MachineClock* clock() { return &clock_; }

 private:
  friend struct CoordinatorLife;
  absl::Status RememberNodes();
  void AfterUse();
  void Bury();
  void TickSoon(absl::Duration wait);
  void Tick();

  World* const world_;
  Referee* const referee_;
  const std::string state_dir_;
  const absl::Duration tick_;
  const bool measures_;  // Nodes, before a job meets them.
  const RanksByProject quotas_;
  MachineClock clock_;
  FaultyDisk disk_;
  absl::Time still_until_ = absl::InfinitePast();
  absl::Time next_tick_ = absl::InfiniteFuture();
  bool busy_ = false;  // In a tick or a call.
  int jobs_ = 0;
  std::shared_ptr<CoordinatorLife> life_;
};

}  // namespace fsdpd::sim
