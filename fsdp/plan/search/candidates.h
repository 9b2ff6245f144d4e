// The ways to run a job that train the same: its ranks on other meshes, other strategies and micro-batches.
// Samples of a step, their length, precision and optimizer stay (gradients that are not sharded cross the
// wire in fp32, as they must); micro-batches are such that the global batch comes out exactly. What a way may
// be is a table of dimensions, one row for each; what the rules refuse is among the ways, and theirs to say.
//
// Pure. Ways come in an order that depends on the job alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

constexpr size_t kMaxHeld = 16;  // More than there are fields to name.

// Fields that are tried, by which they can be held: "parallel.tensor", "train.micro_batch", ...
std::vector<std::string> SearchedFields();

// A fault for each of `held` that is neither such a field nor above one ("parallel"); one alone where there
// are more than kMaxHeld.
Violations CheckHeld(const std::vector<std::string>& held);

// Whether a field keeps what the job says.
bool IsHeld(const std::string& field, const std::vector<std::string>& held);

// Why no number of stages is among the ways: what the rules say of the fewest. Empty where there are some, or
// the ranks have no divisor. REQUIRES: the job's resources and parallel are positive.
std::optional<Violation> WhyNoStages(const v1::JobSpec& job);

enum class Visit {
  kGoOn,
  kNoMore,  // Of this way, with larger micro-batches.
  kStop,
};

// Recompute is left to the plan (`auto`: the cheapest that fits), unless it is held. Micro-batches of
// otherwise equal ways follow each other, the smallest first. `is_over` (may be null: never) is asked before
// each way, and on the way to some that turn out not to be there: true ends the visit. REQUIRES: as
// WhyNoStages.
void VisitCandidates(const v1::JobSpec& job, const std::vector<std::string>& held,
                     const std::function<Visit(const v1::JobSpec&)>& visit,
                     const std::function<bool()>& is_over = nullptr);

// What ways differ in. A job may have a MiB, and twenty thousand ways.
struct Way {
  v1::Parallel parallel;
  v1::Fsdp fsdp;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> global_batch;
};
Way WayOf(const v1::JobSpec& job);
// The one that was visited, of the job that the visit was of.
v1::JobSpec AsWay(v1::JobSpec job, const Way& way);

}  // namespace fsdpd
