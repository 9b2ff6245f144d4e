// Cost model: the time of one instruction when it runs without contention, from the model's facts, the
// layout's bytes and a device's rates. simulate.h combines the times into a step.
#pragma once

#include <array>
#include <vector>

#include "fsdp/plan/predict/device_profile.h"
#include "fsdp/plan/program/program.h"

namespace fsdpd {

// Placement of ranks on nodes, as far as link speed depends on it.
struct Placement {
  int64_t ranks_per_node = 1;
};

// Seconds by instruction index.
std::vector<double> InstructionSeconds(const Spec& spec, const ModelFacts& model, const Layout& layout,
                                       const Program& program, const DeviceProfile& profile,
                                       Placement placement);

// The same for the Snapshots of a step that saves, on the rank that copies most; 0 for other instructions.
// InstructionSeconds() has 0 for Snapshots, because most steps save nothing.
std::vector<double> SnapshotSeconds(const Spec& spec, const Layout& layout, const Program& program,
                                    const DeviceProfile& profile);

// Communication inside the units of a step, by group; its time is included in that of the units.
struct ExchangeCost {
  double seconds = 0;
  int64_t received_bytes = 0;  // By one rank.
  int64_t count = 0;
};
std::array<ExchangeCost, kGroups> ExchangeCosts(const Spec& spec, const ModelFacts& model,
                                                const Layout& layout, const Program& program,
                                                const DeviceProfile& profile, Placement placement);

// Times of every instruction type of one unit, summed over its buckets, without a program: input of
// estimate.h.
struct UnitSeconds {
  double forward = 0;
  double backward = 0;
  double deferred = 0;             // Deferrable part of the backward (weight gradients).
  double cast = 0;                 // A local gather, which runs on compute.
  double gather = 0;               // Other gathers.
  double first_reduce = 0;         // Reduce of the first micro-batch, which sets the gradient shard.
  double accumulating_reduce = 0;  // Reduce of a later one, which adds to it.
  double reduce_outer = 0;
  double gather_replica = 0;
  double update = 0;
  double fetch = 0;            // Fetch of offloaded state; writing back takes as long and overlaps.
  double activation_copy = 0;  // Offload of saved activations, each way.
};
struct StepSeconds {
  std::vector<UnitSeconds> units;
  double norm = 0;
  double stage_transfer = 0;  // Hidden states of a micro-batch to the next stage.
};
StepSeconds SecondsWithoutProgram(const Spec& spec, const ModelFacts& model, const Layout& layout,
                                  const DeviceProfile& profile, Placement placement);

// FLOPs of a step over all ranks: 3x forward, causal attention counted as half, recompute not counted.
double StepFlops(const Spec& spec, const ModelFacts& model);

}  // namespace fsdpd
