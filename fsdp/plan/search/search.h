// Configuration search: finds the fastest equivalent configuration of a job (candidates.h) that fits in
// memory. All configurations that pass the rules are ranked by a closed-form estimate of step time and memory
// (predict/estimate.h, EstimateMemory); the best are compiled, verified and simulated like any plan.
//
// Pure except for the time that `spent` reads. Runs on one thread and holds at most one program.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/spec_text/violation.h"
#include "fsdp/plan/predict/device_profile.h"
#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

constexpr double kRankingFraction = 0.7;
constexpr double kCancelled = 1e9;  // Returned by `spent` if the request was cancelled.

struct SearchOptions {
  int64_t budget_bytes_per_rank = 0;  // See MakePlan(); 0: the profile's memory.
  std::vector<std::string> held;      // REQUIRES: CheckHeld() found no violation.
  int shown = 5;
  int simulated =
      20;  // Configurations to simulate, of those estimated to fit; more if fewer than `shown` really fit.
  int64_t tried = 20000;
  // Fraction of the time limit spent so far; polled before each configuration. Above kRankingFraction,
  // ranking stops. Above 1, simulation stops, except for the minimum needed to return one result. Null: no
  // limit.
  std::function<double()> spent;
  // The fix for a search whose time was too short to find a way that the rules allow.
  std::string fix_of_no_time = "allow more time (--timeout), hold fields, or search with fsdpctl --offline";
};

struct Searched {
  v1::PlanSearch search;  // `seconds` is unset.
  // Set if no configuration was found: why the rules reject the job as written, that time ran out, or an
  // internal error.
  Violations violations;
};

// REQUIRES: CheckProfile() found no violation. A configuration that fails an internal check is skipped; if
// all do, the result is the violation `compiler_bug`, as in MakePlan().
Searched SearchPlans(const v1::JobSpec& job, const DeviceProfile& profile, const SearchOptions& options);

}  // namespace fsdpd
