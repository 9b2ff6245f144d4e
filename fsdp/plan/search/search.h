// Which way to run a job is fastest, of those that train the same (candidates.h) and fit: all that the rules
// allow are ranked by a closed form of their step's time and memory (predict/estimate.h, EstimateMemory), and
// the best are compiled, verified and simulated as any plan is. All ranks of a job run one program, so that
// proof is of every rank.
//
// Pure but for the time that `spent` reads. One core; no more than one program is held at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/violation.h"
#include "fsdp/plan/predict/device_profile.h"
#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

constexpr double kRankingShare = 0.7;
constexpr double kCancelled = 1e9;  // Of `spent`: nobody waits for the answer.

struct SearchOptions {
  int64_t budget_bytes_per_rank = 0;  // As MakePlan() takes it; 0: the profile's memory.
  std::vector<std::string> held;      // REQUIRES: CheckHeld() found no fault.
  int shown = 5;
  int simulated =
      20;  // Of the ways that fit by the closed form; more where fewer than `shown` fit after all.
  int64_t tried = 20000;
  // Asked before each way, and on the way to them: which share of its time the search has had. Above
  // kRankingShare no further way is ranked, and above 1 none is simulated, but for the few that it takes to
  // have one. May be null: no limit.
  std::function<double()> spent;
  // The fix for a search whose time was too short to find a way that the rules allow.
  std::string fix_of_no_time = "allow more time (--timeout), hold fields, or search with fsdpctl --offline";
};

struct Searched {
  v1::PlanSearch search;  // Without `seconds`.
  // Where no way is there at all: why the rules refuse the job as it is written, or that there was no time,
  // or our own fault.
  Violations faults;
};

// REQUIRES: the profile has no faults. A check that fails leaves out the way in which it failed; where it is
// in the way of all, it is the fault `compiler_bug`, as MakePlan()'s.
Searched SearchPlans(const v1::JobSpec& job, const DeviceProfile& profile, const SearchOptions& options);

}  // namespace fsdpd
