// How long one instruction takes when nothing runs beside it: the model's facts and the layout's bytes,
// divided by a device's rates. Decides nothing about order; simulate.h puts the times together.
#pragma once

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

// FLOPs of a step over all ranks: three times the forward's, causal attention counted half, recompute not
// counted.
double StepFlops(const Spec& spec, const ModelFacts& model);

}  // namespace fsdpd
