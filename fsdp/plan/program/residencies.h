// When a unit's parameters are there, and when their gathers may start: the schedule of a program's parameter
// side, as pure functions of the order in which units run.
//
// A pass is one unit's forward, backward or both on one micro-batch. A residency is a run of passes over
// which a unit's buckets stay: as long as each next pass needs them (the first unit from its backward to the
// next micro-batch's forward), or from first to last use where they are kept.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/layout/layout.h"
#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

// The units whose parameters `unit` computes with: its lender, where it borrows, and itself.
std::vector<int> UnitsUsedBy(const Layout& layout, int unit);

// Those of them whose buckets a pass reads: all, but for what a backward does not need.
std::vector<int> UnitsReadBy(const Layout& layout, const Pass& pass);

struct Residency {
  int unit = 0;
  int first_pass = 0;  // Both included.
  int last_pass = 0;
};

// By first pass, which is the order in which their buckets are gathered.
std::vector<Residency> ListResidencies(const Layout& layout, const Schedule& passes, bool keep);

// One bucket's gather for one residency. Compute must have come to `from_pass` before it starts: then the
// bytes are free, and no more than prefetch_bytes wait for passes that come later.
struct PlannedGather {
  int bucket = 0;
  int residency = 0;
  int from_pass = 0;
};

// In the order of the gather lane. `bytes` per bucket.
std::vector<PlannedGather> PlanGathers(const Layout& layout, const std::vector<Residency>& residencies,
                                       const std::vector<int64_t>& bytes, int64_t prefetch_bytes);

}  // namespace fsdpd
