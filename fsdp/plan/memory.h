// Bytes per rank by component, at the peak of a step.
//   main_params, optimizer, gradients   exact, from the layout
//   gather_buffers, reduce_buffers      exact, from the program's arena
//   activations, workspace              estimates, from the model's facts
#pragma once

#include <string>
#include <vector>

#include "base/violation.h"
#include "fsdp/plan/program.h"

namespace fsdpd {

struct MemoryComponent {
  std::string name;
  int64_t bytes = 0;
  std::string note;
};

struct StepMemory {
  std::vector<MemoryComponent> components;
  int64_t peak_bytes = 0;
};

StepMemory PlanMemory(const Spec& spec, const ModelFacts& model, const Layout& layout,
                      const Program& program);

// A fault that names the component that overflows and the smallest change that would fit; empty when it fits
// or the spec has no budget.
Violations CheckBudget(const Spec& spec, const StepMemory& memory);

}  // namespace fsdpd
