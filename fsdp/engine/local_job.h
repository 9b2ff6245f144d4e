// A whole job in one process: ranks are threads, everything else is what a rank process runs. On CPU they
// meet in memory; on CUDA each has a device of its own and they meet over NCCL. For programs that use the
// library (fsdp/fsdp.h), for tests, and for comparing losses with other engines.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fsdp/checkpoint/job_file.h"
#include "fsdp/data/sample_order.h"
#include "fsdp/engine/departure.h"
#include "fsdp/model/user_model.h"
#include "fsdp/plan/plan.h"
#include "fsdp/telemetry/step_timeline.h"
#include "fsdp/telemetry/step_traces.h"
#include "proto/fsdpd/v1/course.pb.h"
#include "proto/fsdpd/v1/job.pb.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

struct LocalJobOptions {
  // Initial values, in the order of LocalJobResult::weights; empty: the model's own.
  std::vector<float> weights = {};
  const UserModel* model = nullptr;               // TrainerOptions, as the next.
  const std::atomic<bool>* stop = nullptr;        // Null: nobody stops it.
  std::vector<const Departure*> departures = {};  // By rank; empty: nobody tells them to leave.
  std::vector<StepTraces*> traces = {};           // By rank; empty: no step is traced.
  Clock* clock = Clock::Real();                   // TrainerOptions, as the next.
  bool run_ahead_on_cpu = false;
  std::vector<SampleRange> passed_over = {};
  JobLabel label = {};  // RankRun's, as the next.
  std::function<void(const v1::SavedCheckpoint&)> on_saved = {};
  // After each step, on rank 0's thread; an error ends the job. Empty: nobody is told.
  std::function<absl::Status(const v1::StepReport&)> on_step = {};
  // TrainerOptions', of rank 0, on its thread.
  std::function<absl::Status(const v1::StepCourse&)> on_course = {};
  // After each step of each rank, on the rank's thread. May be empty.
  std::function<void(int rank, const v1::StepReport&)> on_rank_step = {};
};

struct LocalJobResult {
  std::vector<std::vector<v1::StepReport>> reports;  // By rank, then by step.
  std::vector<float> weights;       // After the last step: all parameters, in the order of SlotOffsets().
  std::vector<Timeline> timelines;  // By rank: of the last step; without slices where there was none.
  std::vector<v1::SavedCheckpoint> saved;  // In order.
  std::optional<v1::RestoredCheckpoint> restored;
};

// A spec as text of JobSpec in JSON.
absl::StatusOr<v1::JobSpec> ReadJob(const std::string& json);
// ... and its plan; INVALID_ARGUMENT with every fault when it is refused.
absl::StatusOr<Plan> PlanOfJson(const std::string& json);

// Returns the first error of the lowest rank that has one; an error that others caused counts last.
absl::StatusOr<LocalJobResult> RunLocalJob(const Plan& plan, const LocalJobOptions& options = {});

}  // namespace fsdpd
