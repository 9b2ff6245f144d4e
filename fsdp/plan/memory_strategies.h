// Search behind fsdp.memory: recompute_or_offload. Lists the ways to fit a step into its memory budget by
// combining activation checkpointing (recompute) and activation offload, each with the fewest recomputed
// layers and a predicted step time.
//
// Pure. Uses the shipped profile of the device kind, so that the result does not depend on the host that
// plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/memory/memory.h"

namespace fsdpd {

struct MemoryStrategy {
  int64_t offloaded_layers = 0;
  RecomputeChoice recompute;
  int64_t peak_bytes = 0;
  double step_seconds = 0;  // 0 if there is only one strategy.
};

// Recompute settings that the spec fixes.
struct FixedRecompute {
  std::optional<Recompute> kind;
  std::optional<int64_t> layers;
};

// Strategies that fit the spec's budget, fastest first. Returns only the strategy that saves nothing if none
// is needed, and only the one with the lowest peak if none fits. REQUIRES: a budget, and one pipeline stage.
std::vector<MemoryStrategy> MemoryStrategies(const Spec& spec, const FixedRecompute& held,
                                             int64_t ranks_per_node);

// Numbers of offloaded layers to try, for a model with `blocks` layers: 0, about ten values in between, and
// all.
std::vector<int64_t> OffloadsToTry(int64_t blocks);

// "selective on 4 layers", "none"; covers only layers that are not offloaded.
std::string Describe(const RecomputeChoice& choice);

}  // namespace fsdpd
