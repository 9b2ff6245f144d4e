// Whether this node can take a launch: the coordinator decided on what it knew, and the agent knows what is
// so. Pure.
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
  std::vector<int> devices;           // Of the ranks of which something is left, one each.
  std::optional<int> newest_attempt;  // Of the launch's job.
  std::set<std::string> allowed_env;  // Patterns of --allow-env (base/rank_env.h).
};

// Why not, in words; "" when it can.
std::string WhyRefused(const v1::Launch& launch, const NodeUse& use);

}  // namespace fsdpd
