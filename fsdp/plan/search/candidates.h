// Equivalent configurations of a job: other meshes, sharding strategies and micro-batch sizes that train the
// same model on the same batches. Global batch, sequence length, precision and optimizer stay fixed
// (unsharded gradients are communicated in fp32, as required). Micro-batches divide the global batch exactly.
// The search space is a table of dimensions, one row each; configurations that the rules reject are included,
// and the caller checks them.
//
// Pure. The order depends only on the job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/spec_text/violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

constexpr size_t kMaxHeld = 16;  // More than the number of searchable fields.

// Fields that the search varies, and that can be held fixed: "parallel.tensor", "train.micro_batch", ...
std::vector<std::string> SearchedFields();

// A violation for each name in `held` that is neither a searched field nor a parent of one ("parallel"); a
// single violation if there are more than kMaxHeld.
Violations CheckHeld(const std::vector<std::string>& held);

// Whether the search must keep the job's value of a field.
bool IsHeld(const std::string& field, const std::vector<std::string>& held);

// Why pipeline parallelism is not searched: the violation for the smallest stage count. Empty if some count
// is valid, or if the world size has no divisor. REQUIRES: the job's resources and parallel are positive; so
// does VisitCandidates.
std::optional<Violation> WhyNoStages(const v1::JobSpec& job);

enum class Visit {
  kContinue,
  kSkipLarger,  // Skip larger micro-batches of this configuration.
  kStop,
};

// Calls `visit` for each configuration. Recompute is left to the planner (`auto`: the cheapest that fits)
// unless held. Configurations that differ only in micro-batch size are visited in a row, smallest first.
// `is_over` (null: never) is polled before each configuration and while skipping invalid ones; returning true
// stops the visit.
void VisitCandidates(const v1::JobSpec& job, const std::vector<std::string>& held,
                     const std::function<Visit(const v1::JobSpec&)>& visit,
                     const std::function<bool()>& is_over = nullptr);

// The fields in which configurations differ. Compact, because a job spec can be a MiB and a search can visit
// 20,000 configurations.
struct Candidate {
  v1::Parallel parallel;
  v1::Fsdp fsdp;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> global_batch;
};
Candidate CandidateOf(const v1::JobSpec& job);
// Applies `way` to the job that was visited.
v1::JobSpec ApplyCandidate(v1::JobSpec job, const Candidate& candidate);

}  // namespace fsdpd
