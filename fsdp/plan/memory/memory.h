// Bytes per rank by component, at the peak of a step.
//   main_params, optimizer, gradients         exact, from the layout
//   replica, gather_buffers, reduce_buffers   exact, from the program's arena
//   activations, workspace                    from the model's facts, at the unit where they peak together:
//                                             exact for native units, estimates for others
//   library                                   on CPU receive buffers, a bound; of CUDA's an estimate
//   fragmentation                             what CUDA's allocator takes beside: an estimate
// And beside these, pinned host memory, of the rank that takes most: snapshots (host_memory.h), and what of
// the optimizer's state and of layers' activations lies there.
//
// Pure; nothing here knows a device. A component that a job does not need is there with 0 bytes.
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
  int64_t offloaded_bytes = 0;              // Of which every rank has so much; the rest is rank 0's snapshot.

  int64_t Of(absl::string_view component) const;  // 0 when there is none of that name.
};

StepMemory PlanMemory(const Spec& spec, const ModelFacts& model, const Layout& layout,
                      const Program& program);

// The same without the program, in closed form: its arena is taken to be what is live at once where that is
// most. Within some percent of the plan's, on either side.
StepMemory EstimateMemory(const Spec& spec, const ModelFacts& model, const Layout& layout);

// What one unit adds while its backward runs, beside what the units before it keep: all that a unit without
// recompute keeps (with recompute it is there again, of selective not all at once), and its workspace.
struct UnitPeak {
  int64_t activations = 0;
  int64_t workspace = 0;
};
UnitPeak BackwardPeak(const UnitFacts& unit);

// How much is recomputed: the first `layers` blocks use `recompute`, those after it the next cheaper kind.
struct RecomputeChoice {
  Recompute recompute = Recompute::kNone;
  int64_t layers = 0;
};

// The cheapest that fits the spec's budget: none, else selective on the fewest layers, else full on the
// fewest. `only_layers` restricts it to that number. Empty when not even full recompute fits. The program's
// buffers do not depend on recompute, so the one of any choice serves.
std::optional<RecomputeChoice> CheapestRecompute(const Spec& spec, const ModelFacts& model,
                                                 const Layout& layout, const Program& program,
                                                 std::optional<int64_t> only_layers = std::nullopt);

// Likewise by EstimateMemory().
std::optional<RecomputeChoice> EstimateRecompute(const Spec& spec, const ModelFacts& model,
                                                 const Layout& layout,
                                                 std::optional<int64_t> only_layers = std::nullopt);

// The unit with the most gathered bytes: what prefetch is by default.
struct LargestUnit {
  std::string name;
  int64_t bytes = 0;      // Gathered.
  int64_t all_bytes = 0;  // Of all units together.
};
LargestUnit FindLargestUnit(const Layout& layout);

}  // namespace fsdpd
