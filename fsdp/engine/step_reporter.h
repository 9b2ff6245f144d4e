// Reports of one rank's steps: the step report with its times, memory and warnings, the step timeline for
// display, and traces. Owns which step a timeline or memory snapshot is taken of; training does not depend on
// it.
//
// Call order: Watch; for each step, BeginStep before the executor submits it and EndStep after that; once it
// is collected, WriteTraces, Report, AddWarnings and SendTimeline. Steps that are replayed begin again, after
// Replay. REQUIRES: the arguments of the constructor outlive the reporter, and the reporter the executor.
//
// Thread safety: one thread.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/connected_mesh.h"
#include "fsdp/data/batch_reader.h"
#include "fsdp/engine/data_warnings.h"
#include "fsdp/engine/executor.h"
#include "fsdp/memory/arena.h"
#include "fsdp/memory/memory_snapshot.h"
#include "fsdp/memory/spike_detector.h"
#include "fsdp/memory/step_peak.h"
#include "fsdp/telemetry/device_recorder.h"
#include "fsdp/telemetry/step_timeline.h"
#include "fsdp/telemetry/step_traces.h"
#include "fsdp/telemetry/timeline_report.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

constexpr absl::Duration kTimelineInterval = absl::Seconds(1);  // Interval of step timelines, for display.

// A step that was submitted and not yet reported.
struct OpenStep {
  StepInputs inputs;
  StepBatches batches;  // In use until the step is collected.
  std::vector<std::string> warnings;
  bool reports_timeline = false;
  // Set by StepReporter::EndStep.
  v1::MemoryReport memory;
  HeldBytes held;                                  // Set if reports_timeline.
  std::shared_ptr<const MemorySnapshot> snapshot;  // Set if one is to be written.
};

class StepReporter {
 public:
  // As in TrainerOptions.
  struct Options {
    const Plan* plan = nullptr;
    const ConnectedMesh* mesh = nullptr;
    int device_index = 0;
    bool own_process = false;
    StepTraces* traces = nullptr;
    std::function<absl::Status(const v1::StepTimeline&)> on_timeline;
  };

  // REQUIRES: gradients of `params` are not yet bound to the arena, since those count as part of it.
  // `steps_done`: before this attempt.
  StepReporter(Options options, const Arena* arena, const ShardedParams& params, int64_t steps_done);
  ~StepReporter();  // Stops recording for traces.

  // REQUIRES: no step was submitted.
  void Watch(Executor* executor);

  // Whether to report the timeline of a step that is submitted now.
  bool TakesTimeline(absl::Time now);
  // `first` and `last`: the open steps, including this one.
  void BeginStep(int64_t first, int64_t last);
  // The allocator works at submission, so its counters and history describe this step.
  void EndStep(OpenStep* step);
  void Replay() { traced_step_ = 0; }  // The next step does not follow the traced one.

  // For the step collected last:
  void WriteTraces(const OpenStep& step);
  v1::StepReport Report(const OpenStep& step, const StepResult& result, double expert_capacity) const;
  // Once the report has its evaluation.
  void AddWarnings(const OpenStep& step, const StepResult& result, v1::StepReport* report);
  absl::Status SendTimeline(const OpenStep& step, const v1::StepReport& report) const;
  Timeline TimelineOf(int64_t step) const;  // Empty if no step was collected.

 private:
  void MakeRecorder();
  void TakeSnapshot(OpenStep* step);
  Timeline TraceOf(const OpenStep& step);
  HeldBytes HeldByStep() const;
  v1::MemoryReport ReadMemory();

  const Spec& spec() const { return options_.plan->spec; }
  std::string NameOf(int instruction) const {
    return NameOfInstruction(options_.plan->program, options_.plan->layout, instruction);
  }

  const Options options_;
  const Arena* const arena_;
  const Executor* executor_ = nullptr;
  StepPeak peak_;                // Used by lanes.
  int64_t step_peak_bytes_ = 0;  // The allocator's peak in the last step that was not launched as a graph.
  SpikeDetector spikes_;
  DataWarnings warnings_;
  std::optional<TimelineReport> timelines_;               // Set if on_timeline is.
  absl::Time timeline_submitted_ = absl::InfinitePast();  // When the last step with a timeline was submitted.
  bool records_memory_ = false;
  std::shared_ptr<const std::vector<std::string>> names_;  // Instructions; set with the first snapshot.
  std::shared_ptr<DeviceRecorder> recorder_;               // On GPUs, if steps can be traced.
  int64_t traced_step_ = 0;                                // The step traced last; 0: none.
  absl::Time traced_begin_;                                // When that step began, by the host's clock.
  absl::Time traced_end_ = absl::InfinitePast();           // When it ended.
};

}  // namespace fsdpd
