// Memory estimate: bytes per rank by component, at the peak of a step.
//  main_params, optimizer, gradients         exact, from the layout
//  replica, gather_buffers, reduce_buffers   exact, from the program's arena
//  activations                               from the model's facts, at the unit where their sum with the
//                                            workspace peaks: exact for native units, estimates for others
//  workspace                                 temporaries of that unit: an estimate
//  library                                   CPU: receive buffers, an upper bound; CUDA: an estimate
//  fragmentation                             overhead of CUDA's caching allocator: an estimate
// In addition, pinned host memory of the rank with the most: snapshots (host_memory.h), offloaded optimizer
// state and offloaded activations.
//
// Pure and independent of the device. A component that a job does not use is listed with 0 bytes.
#pragma once

#include <absl/strings/string_view.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

struct MemoryComponent {
  std::string name;
  int64_t bytes = 0;
  std::string note;
};

struct StepMemory {
  std::vector<MemoryComponent> components;  // In the order above.
  int64_t peak_bytes = 0;                   // Their sum.
  int64_t host_bytes = 0;                   // Pinned host memory; not in the sum.
  int64_t offloaded_bytes = 0;  // Part of host_bytes that every rank has; the rest is rank 0's snapshot.

  int64_t Of(absl::string_view component) const;  // 0 for an unknown name.
};

StepMemory PlanMemory(const Spec& spec, const ModelFacts& model, const Layout& layout,
                      const Program& program);

// The same estimate in closed form, without a program: takes the arena to be its live peak. Within a few
// percent of PlanMemory(), in either direction.
StepMemory EstimateMemory(const Spec& spec, const ModelFacts& model, const Layout& layout);

// Activation checkpointing: the first `layers` blocks use `recompute`, the rest the next cheaper kind.
struct RecomputeChoice {
  Recompute recompute = Recompute::kNone;
  int64_t layers = 0;
};

// The cheapest choice that fits the spec's budget: none, else selective on the fewest layers, else full on
// the fewest. `only_layers` fixes the number of layers. Empty if not even full recompute fits. Program
// buffers do not depend on recompute, so a program compiled with any choice can be passed.
std::optional<RecomputeChoice> CheapestRecompute(const Spec& spec, const ModelFacts& model,
                                                 const Layout& layout, const Program& program,
                                                 std::optional<int64_t> only_layers = std::nullopt);

// The same, by EstimateMemory().
std::optional<RecomputeChoice> EstimateRecompute(const Spec& spec, const ModelFacts& model,
                                                 const Layout& layout,
                                                 std::optional<int64_t> only_layers = std::nullopt);

// The unit with the most gathered bytes: the default prefetch distance.
struct LargestUnit {
  std::string name;
  int64_t bytes = 0;      // Gathered bytes.
  int64_t all_bytes = 0;  // Sum over all units.
};
LargestUnit FindLargestUnit(const Layout& layout);

}  // namespace fsdpd
