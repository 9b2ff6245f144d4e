// Checks of attempts against the true state of their ranks: no attempt follows one whose ranks all finished;
// a launch is excluded from the count only if it did not reach all of its ranks; and a device is assigned
// only when nothing of its previous user is left. Part of the invariant checker (referee.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"
#include "tests/sim/ranks.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

class Attempts {
 public:
  explicit Attempts(World* world) : world_(world) {}
  void Watch(const Ranks* ranks) { ranks_ = ranks; }

  // A launch was stored. `again`: a user requested a retry of the job in any state.
  void Launched(const v1::Job& job, bool again);
  void Begun(const RankId& id) { ++attempts_[id.of].begun; }
  void Stored(const v1::Job& job);

  // The coordinator may consider the node lost.
  void Silent(const std::string& node) { silent_[node] = world_->now(); }

 private:
  struct Attempt {
    absl::Time since;
    std::vector<std::string> nodes;
    int world = 0;
    int begun = 0;
  };
  void CheckBefore(const v1::Job& job);
  bool MayBeUnreported(const Attempt& attempt) const;

  World* const world_;
  const Ranks* ranks_ = nullptr;
  std::map<AttemptId, Attempt> attempts_;
  std::map<std::string, absl::Time> silent_;  // Last time at which each node was silent.
};

}  // namespace fsdpd::sim
