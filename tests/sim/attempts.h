// What became of each attempt in truth, held against what the coordinator makes of it, as the referee's rules
// are: one whose ranks have all finished is its job's last, only a launch that has not reached its ranks is
// among those that do not count, and a device is given away once nothing is left on it.
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

  // A launch is stored. `again`: somebody has asked that the job be tried again, whatever it was.
  void Launched(const v1::Job& job, bool again);
  void Begun(const RankId& id) { ++attempts_[id.of].begun; }
  void Stored(const v1::Job& job);

  // The coordinator may hold the node to be lost.
  void Silent(const std::string& node) { silent_[node] = world_->now(); }

 private:
  struct Attempt {
    absl::Time since;
    std::vector<std::string> nodes;
    int world = 0;
    int begun = 0;
  };
  void CheckBefore(const v1::Job& job);
  bool MayBeUnheard(const Attempt& attempt) const;

  World* const world_;
  const Ranks* ranks_ = nullptr;
  std::map<AttemptId, Attempt> attempts_;
  std::map<std::string, absl::Time> silent_;  // When each node was so last.
};

}  // namespace fsdpd::sim
