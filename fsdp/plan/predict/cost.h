// How long one instruction takes when nothing runs beside it: the model's facts and the layout's bytes,
// divided by a device's rates. Decides nothing about order; simulate.h puts the times together.
#pragma once

#include <array>
#include <vector>

#include "fsdp/plan/predict/device_profile.h"
#include "fsdp/plan/program/program.h"

namespace fsdpd {

// How ranks lie on nodes, as far as the links between them differ.
struct Placement {
  int64_t ranks_per_node = 1;
};

// By instruction index, in seconds.
std::vector<double> InstructionSeconds(const Spec& spec, const ModelFacts& model, const Layout& layout,
                                       const Program& program, const DeviceProfile& profile,
                                       Placement placement);

// Likewise, of a step that saves: what its Snapshots take on the rank that copies most, and 0 for all others.
// InstructionSeconds() has 0 for them, as most steps save nothing.
std::vector<double> SnapshotSeconds(const Spec& spec, const Layout& layout, const Program& program,
                                    const DeviceProfile& profile);

// What the units of a step exchange within their instructions, by group: part of those instructions' time.
struct ExchangeCost {
  double seconds = 0;
  int64_t received_bytes = 0;  // By one rank.
  int64_t count = 0;
};
std::array<ExchangeCost, kGroups> ExchangeCosts(const Spec& spec, const ModelFacts& model,
                                                const Layout& layout, const Program& program,
                                                const DeviceProfile& profile, Placement placement);

// What each instruction that there may be of one unit takes, all of its buckets together, without a program:
// what estimate.h adds up.
struct UnitSeconds {
  double forward = 0;
  double backward = 0;
  double put_off = 0;  // Of the backward, what may be left for later.
  double cast = 0;     // A gather that is one rank's own, and so is compute.
  double gather = 0;   // All others.
  double reduce_set = 0;
  double reduce_add = 0;
  double reduce_outer = 0;
  double publish = 0;
  double update = 0;
  double fetch = 0;      // Of what lies in host memory; its way back takes as long, at the same time.
  double kept_copy = 0;  // Of what is kept there between forward and backward, each way.
};
struct StepSeconds {
  std::vector<UnitSeconds> units;
  double norm = 0;
  double stage_transfer = 0;  // Of a micro-batch's hidden states to the next stage.
};
StepSeconds SecondsWithoutProgram(const Spec& spec, const ModelFacts& model, const Layout& layout,
                                  const DeviceProfile& profile, Placement placement);

// FLOPs of a step over all ranks: three times the forward's, causal attention counted half, recompute not
// counted.
double StepFlops(const Spec& spec, const ModelFacts& model);

}  // namespace fsdpd
