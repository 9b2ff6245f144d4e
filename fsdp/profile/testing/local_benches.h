// Ranks as threads with in-memory communication, for tests of measured rates.
#pragma once

#include <functional>

#include "fsdp/profile/rank_bench.h"

namespace fsdpd {

RankBench LocalBench(ConnectedMesh mesh);

// Calls `body` for each rank, each on its own thread.
void OnLocalBenches(int ranks, const std::function<void(RankBench*)>& body);

}  // namespace fsdpd
