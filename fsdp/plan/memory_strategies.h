// fsdp.memory: recompute_or_offload. The ways to make a step fit its budget by what layers keep: on the
// device, in host memory, or computed again; each with the fewest layers that recompute, and its step in
// simulated time.
//
// Pure. By the profile that is shipped for the kind of device, so that a job means the same wherever it is
// planned.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/memory/memory.h"

namespace fsdpd {

struct MemoryWay {
  int64_t offloaded_layers = 0;
  RecomputeChoice recompute;
  int64_t peak_bytes = 0;
  double step_seconds = 0;  // 0 where there was nothing to compare with.
};

// What the spec says of recompute already.
struct HeldRecompute {
  std::optional<Recompute> kind;
  std::optional<int64_t> layers;
};

// Those that fit the spec's budget, the fastest first; where nothing need be saved, that alone, and where
// none fits the one that needs least. REQUIRES: a budget, and one stage.
std::vector<MemoryWay> MemoryStrategies(const Spec& spec, const HeldRecompute& held, int64_t ranks_per_node);

// Numbers of layers, of so many blocks, that are tried in host memory: none, about ten, and all.
std::vector<int64_t> OffloadsToTry(int64_t blocks);

// "selective on 4 layers", "none"; of those that are not offloaded.
std::string Describe(const RecomputeChoice& choice);

}  // namespace fsdpd
