// Residency of gathered parameters: when a unit's parameters are in memory, and when their gathers may start.
// Pure functions of the order in which units run.
//
// A pass is one unit's forward, backward or both on one micro-batch. A residency is a range of consecutive
// passes over which a unit's buckets stay gathered: while each next pass needs them (e.g. the first unit,
// from its backward to the next micro-batch's forward), or from first to last use with keep_gathered.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/layout/layout.h"
#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

// The units whose parameters `unit` uses: itself, and its lender if it borrows.
std::vector<int> UnitsUsedBy(const Layout& layout, int unit);

// The subset of these whose buckets a pass reads; a backward may not need all.
std::vector<int> UnitsReadBy(const Layout& layout, const Pass& pass);

struct Residency {
  int unit = 0;
  int first_pass = 0;  // Inclusive, like last_pass.
  int last_pass = 0;
};

// Ordered by first pass, which is the order of the gathers.
std::vector<Residency> ListResidencies(const Layout& layout, const Schedule& passes, bool keep);

// One bucket's gather for one residency. It may start once compute has reached `from_pass`: from then on its
// bytes are free, and at most prefetch_bytes wait for later passes.
struct PlannedGather {
  int bucket = 0;
  int residency = 0;
  int from_pass = 0;
};

// In the order of the gather lane. `bytes`: per bucket.
std::vector<PlannedGather> PlanGathers(const Layout& layout, const std::vector<Residency>& residencies,
                                       const std::vector<int64_t>& bytes, int64_t prefetch_bytes);

}  // namespace fsdpd
