// Admission control for job specs. A spec is accepted or rejected by its shape (spec_shape.h), the validation
// rules, and the memory of the nodes that could run it, which requires compiling its plan. A rejection here
// is cheap; on GPUs it is expensive.
//
// Pure, except for the node list that `nodes` returns. An accepted spec does not guarantee that a node is
// free.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/schedule/placer.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

// The connected nodes, as if all their slots were free.
using IdleNodes = std::function<std::vector<NodeSlots>()>;

struct Examined {
  // All violations of the spec are in plan.faults; plan.accepted() is the result.
  Plan plan;
  bool open = false;  // Too few nodes were connected to know the memory per rank (job_plan.h).
};

// The inputs of a plan that do not depend on how ranks are laid out.
struct PlanInputs {
  Violations violations;       // Violations at the message level (spec_shape.h).
  int64_t bytes_per_rank = 0;  // Offered by nodes; 0 if unknown.
  DeviceKind device = DeviceKind::kCpu;
};

class Admission {
 public:
  using Planner = std::function<Plan(const v1::JobSpec& spec, int64_t budget_bytes_per_rank,
                                     const std::vector<std::string>& unparsed)>;

  explicit Admission(IdleNodes nodes, Planner plan = MakePlan)
      : nodes_(std::move(nodes)), plan_(std::move(plan)) {}

  // If `budget_bytes_per_rank` is above 0, it replaces the memory that nodes offer.
  Examined Examine(const v1::JobSpec& spec, int64_t budget_bytes_per_rank = 0) const;

  PlanInputs PlanInputsOf(const v1::JobSpec& spec) const;

 private:
  const IdleNodes nodes_;
  const Planner plan_;
};

// INVALID_ARGUMENT for a spec that is too large to parse; no other violation is reported then.
absl::Status CheckSize(const v1::JobSpec& spec);

}  // namespace fsdpd
