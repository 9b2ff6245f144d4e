// Validation of a launch against the state of this node. The coordinator decided on what it knew at that
// time, the agent checks the current state. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

struct NodeUse {
  v1::Device device = v1::DEVICE_CPU;
  int slots = 1;
  std::vector<int> devices;           // Device of each rank that still occupies a slot.
  std::optional<int> newest_attempt;  // Newest attempt of the job of the launch.
  std::set<std::string> allowed_env;  // Patterns of --allow-env (base/spec_text/rank_env.h).
};

// Returns the reason to refuse the launch; "" to accept it.
std::string LaunchError(const v1::Launch& launch, const NodeUse& use);

}  // namespace fsdpd
