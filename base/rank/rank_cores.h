// Environment variable with which an agent sets the CPU affinity of its ranks.
#pragma once

namespace fsdpd {

constexpr char kRankCoresVariable[] = "FSDPD_RANK_CORES";
constexpr char kAllCores[] = "all";  // All cores that the agent may use.
constexpr char kNearCores[] =
    "near";  // Cores near the GPU of the rank (fsdp/rank/near_cores.h); the default.

}  // namespace fsdpd
