// Whether a job spec is let in: its shape (spec_shape.h), the rules, and the memory of the nodes that would
// take it, by compiling its plan. Refusing is cheap here and expensive on a GPU.
//
// Pure, except for what it is told of the nodes. A spec without faults is not a promise that a node is free.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/placer.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

// The nodes that are there, as if they were idle.
using IdleNodes = std::function<std::vector<NodeSlots>()>;

struct Examined {
  // Every fault of the spec is in plan.faults; plan.accepted() says whether it is let in.
  Plan plan;
  bool open = false;  // Too few nodes were there to know what a rank may fill (job_plan.h).
};

// What a spec stands on in whichever way its ranks are laid out.
struct Ground {
  Violations faults;           // Of its message (spec_shape.h).
  int64_t bytes_per_rank = 0;  // That nodes offer; 0: not known.
  DeviceKind device = DeviceKind::kCpu;
};

class Admission {
 public:
  using Planner = std::function<Plan(const v1::JobSpec& spec, int64_t budget_bytes_per_rank,
                                     const std::vector<std::string>& unread)>;

  explicit Admission(IdleNodes nodes, Planner plan = MakePlan)
      : nodes_(std::move(nodes)), plan_(std::move(plan)) {}

  // `budget_bytes_per_rank` above 0 is planned with instead of what nodes offer.
  Examined Examine(const v1::JobSpec& spec, int64_t budget_bytes_per_rank = 0) const;

  Ground GroundOf(const v1::JobSpec& spec) const;

 private:
  const IdleNodes nodes_;
  const Planner plan_;
};

// INVALID_ARGUMENT for a spec that is too large to look at: the one fault that hides all others.
absl::Status CheckSize(const v1::JobSpec& spec);

}  // namespace fsdpd
