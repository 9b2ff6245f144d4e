// Whether a job spec is let in: its shape (spec_shape.h), the rules, and the memory that connected nodes
// offer, by compiling its plan. Refusing is cheap here and expensive on a GPU.
//
// Pure, except for what it is told of the nodes. A spec without faults is not a promise that a node is free.
#pragma once

#include <absl/status/status.h>

#include <functional>

#include "fsdp/plan/plan.h"

namespace fsdpd {

// The smallest memory for one rank among connected nodes of a device; 0 when not known.
using BudgetOf = std::function<int64_t(v1::Device)>;

class Admission {
 public:
  explicit Admission(BudgetOf budget) : budget_(std::move(budget)) {}

  // Every fault of the spec is in Plan.faults; accepted() says whether it is let in. `budget_bytes_per_rank`
  // above 0 is planned with instead of what nodes offer.
  Plan Examine(const v1::JobSpec& spec, int64_t budget_bytes_per_rank = 0) const;

 private:
  const BudgetOf budget_;
};

// INVALID_ARGUMENT for a spec that is too large to look at: the one fault that hides all others.
absl::Status CheckSize(const v1::JobSpec& spec);

}  // namespace fsdpd
