#include "fsdp/plan/program/residencies.h"

#include <algorithm>

#include "base/check.h"

namespace fsdpd {

std::vector<int> UnitsUsedBy(const Layout& layout, int unit) {
  const int lender = layout.units[unit].borrows;
  if (lender < 0) return {unit};
  FSDPD_CHECK(lender < unit && layout.units[lender].borrows < 0);
  return {lender, unit};
}

std::vector<int> UnitsReadBy(const Layout& layout, const Pass& pass) {
  std::vector<int> units = UnitsUsedBy(layout, pass.unit);
  if (IsBackwardOnly(pass.op) && !layout.units[pass.unit].backward_reads) units.pop_back();
  return units;
}

std::vector<Residency> ListResidencies(const Layout& layout, const Schedule& passes, bool keep) {
  std::vector<Residency> residencies;
  std::vector<int> latest(layout.units.size(), -1);  // By unit: index of its latest residency.
  for (size_t i = 0; i < passes.size(); ++i) {
    const int pass = static_cast<int>(i);
    for (const int unit : UnitsReadBy(layout, passes[i])) {
      const int known = latest[unit];
      if (known >= 0 && (keep || residencies[known].last_pass == pass - 1)) {
        residencies[known].last_pass = pass;
        continue;
      }
      latest[unit] = static_cast<int>(residencies.size());
      residencies.push_back({unit, pass, pass});
    }
  }
  return residencies;
}

std::vector<PlannedGather> PlanGathers(const Layout& layout, const std::vector<Residency>& residencies,
                                       const std::vector<int64_t>& bytes, int64_t prefetch_bytes) {
  std::vector<PlannedGather> gathers;
  std::vector<int> free_from(layout.units.size(), 0);
  const auto needed_at = [&](const PlannedGather& g) { return residencies[g.residency].first_pass; };
  // Gathers that are waiting while compute is at pass `at`: from `oldest` on, `waiting` bytes in total.
  int at = 0;
  size_t oldest = 0;
  int64_t waiting = 0;
  const auto use_what_is_needed = [&] {
    for (; oldest < gathers.size() && needed_at(gathers[oldest]) <= at; ++oldest) {
      waiting -= bytes[gathers[oldest].bucket];
    }
  };
  for (size_t i = 0; i < residencies.size(); ++i) {
    const Residency& residency = residencies[i];
    for (const int bucket : layout.units[residency.unit].buckets) {
      gathers.push_back({bucket, static_cast<int>(i), 0});
      waiting += bytes[bucket];
      use_what_is_needed();
      while (waiting > prefetch_bytes && oldest < gathers.size()) {
        ++at;
        use_what_is_needed();
      }
      gathers.back().from_pass = std::max(at, free_from[residency.unit]);
    }
    free_from[residency.unit] = residency.last_pass + 1;
  }
  return gathers;
}

}  // namespace fsdpd
