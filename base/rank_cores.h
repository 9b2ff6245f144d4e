// How an agent tells its ranks that they are not to be bound to cores: a variable of their environment.
#pragma once

namespace fsdpd {

constexpr char kRankCoresVariable[] = "FSDPD_RANK_CORES";
constexpr char kAllCores[] = "all";    // Any that the agent may use.
constexpr char kNearCores[] = "near";  // Those near the rank's GPU (fsdp/near_cores.h); the default.

}  // namespace fsdpd
