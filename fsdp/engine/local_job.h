// Whole job in one process: ranks are threads, everything else is the code of a rank process. On CPU, ranks
// communicate in memory; on CUDA, each rank has its own device and they use NCCL. For the library
// (fsdp/fsdp.h), for tests, and for loss comparisons with other engines.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/data/sample_order.h"
#include "fsdp/engine/departure.h"
#include "fsdp/model/user_model.h"
#include "fsdp/plan/plan.h"
#include "fsdp/telemetry/step_timeline.h"
#include "fsdp/telemetry/step_traces.h"
#include "proto/fsdpd/v1/job.pb.h"
#include "proto/fsdpd/v1/telemetry.pb.h"
#include "proto/fsdpd/v1/timeline.pb.h"

namespace fsdpd {

struct LocalJobOptions {
  // Initial values, in the order of LocalJobResult::weights; empty: initialized by the model.
  std::vector<float> weights = {};
  const UserModel* model = nullptr;               // As in TrainerOptions.
  const std::atomic<bool>* stop = nullptr;        // Null: never stops.
  std::vector<const Departure*> departures = {};  // By rank; empty: never asked to leave.
  std::vector<StepTraces*> traces = {};           // By rank; empty: no traces.
  Clock* clock = Clock::Real();                   // This and the next two as in TrainerOptions.
  bool run_ahead_on_cpu = false;
  std::vector<SampleRange> skipped_samples = {};
  JobLabel label = {};  // This and the next as in RankRun.
  std::function<void(const v1::SavedCheckpoint&)> on_saved = {};
  // After each step, on rank 0's thread; an error ends the job. May be empty.
  std::function<absl::Status(const v1::StepReport&)> on_step = {};
  // As in TrainerOptions; on rank 0's thread.
  std::function<absl::Status(const v1::StepTimeline&)> on_timeline = {};
  // After each step of each rank, on the rank's thread. May be empty.
  std::function<void(int rank, const v1::StepReport&)> on_rank_step = {};
};

struct LocalJobResult {
  std::vector<std::vector<v1::StepReport>> reports;  // By rank, then by step.
  std::vector<float> weights;       // After the last step: all parameters, in the order of SlotOffsets().
  std::vector<Timeline> timelines;  // By rank: of the last step; empty if there was none.
  std::vector<v1::SavedCheckpoint> saved;  // In order.
  std::optional<v1::RestoredCheckpoint> restored;
};

// Parses a JobSpec from JSON. Reads the package that model.package.path names.
absl::StatusOr<v1::JobSpec> ReadJob(const std::string& json);
// Parses and plans a JobSpec; INVALID_ARGUMENT with all violations if it is refused.
absl::StatusOr<Plan> PlanOfJson(const std::string& json);

// Returns the first error of the lowest rank that failed, preferring root causes over consequences
// (UNAVAILABLE).
absl::StatusOr<LocalJobResult> RunLocalJob(const Plan& plan, const LocalJobOptions& options = {});

}  // namespace fsdpd
