// Ranks as threads that meet in memory, for this directory's tests.
#pragma once

#include <functional>

#include "fsdp/profile/rank_bench.h"

namespace fsdpd {

RankBench LocalBench(ConnectedMesh mesh);

// Calls `body` for each rank on a thread of its own.
void OnLocalBenches(int ranks, const std::function<void(RankBench*)>& body);

}  // namespace fsdpd
