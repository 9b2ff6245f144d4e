#include "fsdp/engine/executor.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/memory/memory_place.h"
#include "fsdp/plan/program/traffic.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Time for streams to become idle after an abort. A rank that was asked to leave has as long again
// (fsdp/rank/stop_signal.h).
constexpr absl::Duration kDrain = absl::Milliseconds(250);

// The first steps of a process do one-time work that must not be recorded: libraries load code and allocate
// workspaces, the allocator takes memory from the device, and plans are built for new shapes.
constexpr int64_t kStepsBeforeRecording = 2;

// Number of instructions before the updates, which come last in a training step.
size_t GradientsOf(const Program& program) {
  const std::vector<Instruction>& all = program.instructions;
  const auto follows = [](const Instruction& i) { return FollowsNorm(i.op); };
  const auto first = std::find_if(all.begin(), all.end(), follows);
  FSDPD_CHECK(std::all_of(first, all.end(), follows));
  return first - all.begin();
}

absl::Status Annotate(const absl::Status& status, const std::string& where) {
  return Annotated(status, absl::StrCat(where, ": "));
}

// For tests/perf/telemetry_cost.py, which compares training with and without per-instruction measurements
// (start events, memory peaks, flight recorder). FSDPD_MEASURE=off reports a step as one span, in place of
// its first instruction's. End events remain, since dependencies use them. A job cannot set it
// (base/spec_text/rank_env.h).
bool MeasuresInstructions() {
  static const bool measures = [] {
    const char* const setting = std::getenv("FSDPD_MEASURE");
    return setting == nullptr || absl::string_view(setting) != "off";
  }();
  return measures;
}

// Lanes that few programs use: skipping them saves a thread, or one of the few hardware connections of a GPU.
bool IsSpare(LaneId lane, const Program& program) {
  if (lane != LaneId::kFetch && lane != LaneId::kUpdate) return false;
  return std::none_of(program.instructions.begin(), program.instructions.end(),
                      [lane](const Instruction& instruction) { return instruction.lane == lane; });
}

}  // namespace

Lanes MakeLanes(DeviceKind device, int device_index, const Program& program) {
  Lanes lanes;
  for (int i = 0; i < kLanes; ++i) {
    const auto id = static_cast<LaneId>(i);
    const bool compute = id == LaneId::kCompute;
    if (IsSpare(id, program)) continue;
    if (device == DeviceKind::kCuda) {
      lanes[i] = MakeStreamLane(device_index, /*high_priority=*/!compute);
    } else {
      lanes[i] = compute ? MakeInlineLane() : MakeThreadLane();
    }
  }
  return lanes;
}

Lanes MakeRunAheadLanes(const Program& program) {
  Lanes lanes;
  for (int i = 0; i < kLanes; ++i) {
    if (!IsSpare(static_cast<LaneId>(i), program)) lanes[i] = MakeThreadLane();
  }
  return lanes;
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Make(const OperationParts& parts, Lanes lanes,
                                                         const std::atomic<bool>* stop,
                                                         FlightRecorder* flight) {
  std::unique_ptr<Executor> executor(new Executor(parts, std::move(lanes), stop));
  if (flight != nullptr && MeasuresInstructions()) executor->ShowProgress(flight);
  Lane* compute = executor->lane(LaneId::kCompute);
  compute->Submit([&executor] {
    executor->operations_ = std::make_unique<Operations>(executor->parts_);
    return absl::OkStatus();
  });
  FSDPD_RETURN_IF_ERROR(compute->Synchronize());
  executor->gradients_ = GradientsOf(parts.plan->program);
  FSDPD_CHECK(parts.plan->program.instructions[executor->gradients_ - 1].lane == LaneId::kReduce);
  return executor;
}

// Failures are only logged: a rank without a flight recorder still trains.
void Executor::ShowProgress(FlightRecorder* flight) {
  static_assert(kLanes <= kMaxFlightLanes && Lane::kProgressBytes <= static_cast<int64_t>(kFlightWordBytes));
  for (int i = 0; i < kLanes; ++i) {
    if (lanes_[i] == nullptr) continue;
    const absl::Status shown = lanes_[i]->ShowProgress(flight->word(i));
    if (!shown.ok())
      LogWarning("could not record the progress of a lane lane=%s error=%s", NameOf(static_cast<LaneId>(i)),
                 shown.message());
  }
  const absl::Status shown = lane(LaneId::kCompute)->ShowLaunches(flight->launched());
  if (!shown.ok()) LogWarning("could not record graph launches error=%s", shown.message());
}

Executor::~Executor() {
  if (!open_.empty()) Abandon();
  if (abandoned_) return;
  for (Lane* lane : AllLanes()) lane->Synchronize().IgnoreError();
}

void Executor::UseGraphs(int device_index) {
  FSDPD_CHECK(submitted_ == 0);
  const absl::Status recordable = operations_->Recordable();
  if (!recordable.ok()) {
    LogInfo("CUDA graphs disabled: steps are submitted instruction by instruction reason=%s",
            recordable.message());
    return;
  }
  graphs_ = true;
  recorded_from_ = kStepsBeforeRecording;
  pool_ = std::make_unique<StepPool>(device_index);
}

absl::Status Executor::Submit(const StepInputs& inputs, std::vector<Batch> batches) {
  FSDPD_CHECK(in_flight() < kMaxInFlight);
  const auto execution = std::make_shared<Execution>();
  execution->program = &parts_.plan->program;
  execution->name = absl::StrCat("step ", inputs.step);
  execution->step = inputs.step;
  execution->saves = inputs.saves;
  execution->result_slot = static_cast<int>(submitted_ % kMaxInFlight);
  const StepPool::Scope memory(pool_.get());
  FSDPD_ASSIGN_OR_RETURN(const bool has_graph, HasGraph(inputs.step, execution->result_slot));
  ++submitted_;
  if (has_graph) {
    JoinLanes();
  } else {
    FSDPD_RETURN_IF_ERROR(SubmitUpdates());
  }
  AwaitNorm();
  Begin(execution.get(), [this, inputs, batches = std::move(batches), slot = execution->result_slot] {
    operations_->BeginStep(inputs, batches, slot);
    return absl::OkStatus();
  });
  if (has_graph) {
    Launch(execution.get(), recorded_[execution->result_slot]);
  } else {
    FSDPD_RETURN_IF_ERROR(SubmitGradients(execution.get()));
  }
  open_.push_back(execution);
  // A snapshot should wait only for the instructions it depends on, not for the end of a whole launch.
  const bool waits_for_snapshots = inputs.saves || (previous_ != nullptr && previous_->saves);
  before_previous_ = std::exchange(previous_, execution);
  updates_due_ = true;
  return graphs_ && !waits_for_snapshots ? absl::OkStatus() : SubmitUpdates();
}

absl::StatusOr<StepResult> Executor::Collect() {
  FSDPD_CHECK(!open_.empty());
  const ExecutionPtr execution = std::move(open_.front());
  open_.pop_front();
  if (open_.empty()) FSDPD_RETURN_IF_ERROR(SubmitUpdates());
  FSDPD_ASSIGN_OR_RETURN(const StepResult result, Await(*execution));
  collected_at_ = absl::Now();
  MeasureSpans(*execution);
  before_collected_begin_ = std::exchange(collected_begin_, execution->begin);
  collected_launch_ = execution->recorded != nullptr;
  return result;
}

absl::StatusOr<StepResult> Executor::Evaluate(const Program& program, const Batch& batch) {
  FSDPD_CHECK(open_.empty());
  Execution execution;
  execution.program = &program;
  execution.name = "evaluation";
  execution.step = previous_ == nullptr ? 0 : previous_->step;
  const StepPool::Scope memory(pool_.get());
  FollowLaunch();
  Begin(&execution, [this, &batch] {
    operations_->BeginEvaluation(batch, /*result_slot=*/0);
    return absl::OkStatus();
  });
  InstructionRange range;
  range.program = &program;
  range.name = execution.name;
  range.step = execution.step;
  range.progress.step = execution.step;
  range.progress.evaluation = true;
  range.events = &execution.events;
  FSDPD_RETURN_IF_ERROR(SubmitRange(range, 0, program.instructions.size()));
  return Await(execution);
}

// Runs kStepsBeforeRecording steps before recording again: the new shapes allocate memory, as in the first
// steps of a job.
void Executor::GrowExpertCapacity(double expert_capacity) {
  FSDPD_CHECK(open_.empty());
  FollowLaunch();
  for (Recorded& recorded : recorded_) recorded = {};
  recorded_from_ = submitted_ + kStepsBeforeRecording;
  SubmitWork(LaneId::kCompute, "growing the expert capacity", [this, expert_capacity] {
    operations_->GrowExpertCapacity(expert_capacity);
    return absl::OkStatus();
  });
}

void Executor::Begin(Execution* execution, std::function<absl::Status()> begin) {
  execution->events.resize(execution->program->instructions.size());
  execution->begin = lane(LaneId::kCompute)->Record();
  SubmitWork(LaneId::kCompute, execution->name, std::move(begin));
}

// A step begins on the compute lane by overwriting the inputs of the previous step's norm. A launched step
// has no event of its norm: everything waits for the end of the launch.
void Executor::AwaitNorm() {
  if (previous_ == nullptr) return;
  const LaneEventPtr& norm = previous_->events[gradients_ - 1].end;
  if (norm != nullptr) lane(LaneId::kCompute)->Wait(norm);
}

// Submits a step up to and including its norm.
absl::Status Executor::SubmitGradients(Execution* execution) {
  InstructionRange range;
  range.program = execution->program;
  range.name = execution->name;
  range.step = execution->step;
  range.progress.step = execution->step;
  range.before = previous_ != nullptr ? &previous_->events : nullptr;
  range.events = &execution->events;
  return SubmitRange(range, 0, gradients_);
}

// Submits the updates of the step that was submitted last, unless already submitted.
absl::Status Executor::SubmitUpdates() {
  if (!std::exchange(updates_due_, false)) return absl::OkStatus();
  const StepPool::Scope memory(pool_.get());
  FollowLaunch();
  InstructionRange range;
  range.program = previous_->program;
  range.name = previous_->name;
  range.step = previous_->step;
  range.progress.step = previous_->step;
  range.saves = previous_->saves;
  range.before = before_previous_ != nullptr ? &before_previous_->events : nullptr;
  range.events = &previous_->events;
  return SubmitRange(range, gradients_, previous_->events.size());
}

absl::Status Executor::SubmitRange(const InstructionRange& range, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    absl::Status status = FirstError();
    if (stop_->load(std::memory_order_relaxed)) status = absl::CancelledError("asked to stop");
    if (status.ok()) SubmitInstruction(range, static_cast<int>(i));
    if (status.ok()) status = FirstError();
    if (!status.ok()) return range.records ? status : Fail(status);
  }
  return absl::OkStatus();
}

void Executor::SubmitInstruction(const InstructionRange& range, int index) {
  const Instruction& instruction = range.program->instructions[index];
  Lane* lane = this->lane(instruction.lane);
  // An instruction without an event was launched in a graph, whose end the lanes have waited for.
  const auto wait = [lane](const InstructionEvents& earlier) {
    if (earlier.end != nullptr) lane->Wait(earlier.end);
  };
  for (const int earlier : instruction.after) wait((*range.events)[earlier]);
  if (range.before != nullptr) {
    for (const int earlier : instruction.after_previous) wait((*range.before)[earlier]);
  }
  LaneProgress progress = range.progress;
  progress.instruction = index;
  progress.inside = true;
  lane->Progress(PackProgress(progress));
  InstructionEvents& events = (*range.events)[index];
  if (MeasuresInstructions()) events.start = lane->Record();
  const bool trains = !range.progress.evaluation;
  const MemoryPlace place = {static_cast<int32_t>(range.step), trains ? index : MemoryPlace::kEvaluation};
  lane->Submit([this, &instruction, index, program = range.program, saves = range.saves,
                records = range.records, trains, place, name = range.name] {
    const MemoryPlaceScope here(place, /*with_others=*/instruction.lane == LaneId::kCompute);
    absl::Status status = CatchTorch([&] { return operations_->Run(instruction, saves); });
    if (trains && peak_ != nullptr && instruction.lane == LaneId::kCompute && MeasuresInstructions())
      peak_->Ended(index);
    if (status.ok()) return status;
    status = Annotate(status, absl::StrCat(name, ": ", Describe(*program, parts_.plan->layout, index)));
    if (!records) RecordError(status);
    return status;
  });
  // Before the end event: when dependents start, the flight recorder shows this one as finished.
  progress.inside = false;
  lane->Progress(PackProgress(progress));
  events.end = lane->Record();
}

std::vector<Lane*> Executor::AllLanes() {
  std::vector<Lane*> all;
  for (const std::unique_ptr<Lane>& each : lanes_) {
    if (each != nullptr) all.push_back(each.get());
  }
  return all;
}

// Makes the other lanes wait for the end of a launch, which runs on the compute lane, before they get new
// work.
void Executor::FollowLaunch() {
  const LaneEventPtr end = std::exchange(launch_end_, nullptr);
  if (end == nullptr) return;
  for (Lane* each : AllLanes()) {
    if (each != lane(LaneId::kCompute)) each->Wait(end);
  }
}

// Makes the compute lane wait for all others before a launch. If launch_end_ is set, they had no work since
// the last launch.
void Executor::JoinLanes() {
  if (launch_end_ != nullptr) return;
  Lane* compute = lane(LaneId::kCompute);
  for (Lane* each : AllLanes()) {
    if (each != compute) compute->Wait(each->Record());
  }
}

void Executor::Launch(Execution* execution, const Recorded& recorded) {
  recorded.graph->Launch(static_cast<uint64_t>(execution->step));
  execution->recorded = &recorded;
  execution->launch_end = launch_end_ = lane(LaneId::kCompute)->Record();
  updates_due_ = false;  // They were part of the launch.
}

// Returns whether the next step is launched as a graph, and records it if needed. Only if the updates of the
// previous step are still due. The same on all ranks.
absl::StatusOr<bool> Executor::HasGraph(int64_t step, int result_slot) {
  if (!graphs_ || !updates_due_ || submitted_ < recorded_from_) return false;
  Recorded& recorded = recorded_[result_slot];
  if (recorded.graph != nullptr) return true;
  operations_->BeginRecording(result_slot);
  const absl::Status status = Record(step, &recorded);
  FSDPD_ASSIGN_OR_RETURN(const int64_t failures, CountRecordingFailures(status.ok()));
  if (failures == 0) return true;
  // NCCL counts recorded collectives: ranks that recorded more of them would wait for the others forever.
  if (failures < parts_.plan->spec.mesh.world()) {
    return Fail(absl::InternalError(absl::StrCat(
        "CUDA graphs: ", failures, " of ", parts_.plan->spec.mesh.world(),
        " ranks could not record a step (this rank: ", status.ok() ? "recorded" : status.message(),
        "); set train.graphs: false")));
  }
  graphs_ = false;
  LogWarning("disabled CUDA graphs error=%s", status.message());
  operations_->ForgetRecording();
  return false;
}

absl::Status Executor::Record(int64_t step, Recorded* recorded) {
  std::vector<Lane*> lanes = AllLanes();
  std::iter_swap(lanes.begin(), std::find(lanes.begin(), lanes.end(), lane(LaneId::kCompute)));
  recorded->events.assign(previous_->events.size(), InstructionEvents());
  InstructionRange updates;
  updates.program = &parts_.plan->program;
  updates.name = "recording a step";
  updates.step = previous_->step;
  updates.progress.recorded = true;
  updates.progress.step = 1;  // Updates belong to the step before the launched one.
  updates.records = true;
  updates.events = &recorded->events;
  std::vector<InstructionEvents> updated;
  InstructionRange gradients = updates;
  gradients.step = step;
  gradients.progress.step = 0;
  gradients.before = &updated;
  auto graph = RecordGraph(lanes, [&] {
    FSDPD_RETURN_IF_ERROR(SubmitRange(updates, gradients_, recorded->events.size()));
    updated = recorded->events;
    return SubmitRange(gradients, 0, gradients_);
  });
  FSDPD_ASSIGN_OR_RETURN(recorded->graph, std::move(graph));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Executor::CountRecordingFailures(bool recorded) {
  FollowLaunch();
  constexpr const char* kWhat = "agreeing on CUDA graphs";
  SubmitWork(LaneId::kReduce, kWhat,
             [this, recorded] { return operations_->ReduceRecordingFailures(recorded); });
  const absl::Status status = lane(LaneId::kReduce)->Record()->Await([this] { return Interrupted(); });
  const absl::Status first = FirstError();
  if (!first.ok()) return Fail(first);
  if (!status.ok()) return Fail(Annotate(status, kWhat));
  int64_t failures = 0;
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    failures = operations_->RecordingFailures();
    return absl::OkStatus();
  }));
  return failures;
}

void Executor::SubmitWork(LaneId lane, std::string where, std::function<absl::Status()> work) {
  this->lane(lane)->Submit([this, where = std::move(where), work = std::move(work)] {
    const absl::Status status = CatchTorch(work);
    if (!status.ok()) RecordError(Annotate(status, where));
    return status;
  });
}

// Waits for the launch and for the last instruction on each lane, and so for everything that was submitted.
absl::StatusOr<StepResult> Executor::Await(const Execution& execution) {
  std::array<LaneEvent*, kLanes> last = {};
  for (size_t i = 0; i < execution.events.size(); ++i) {
    LaneEvent* const end = execution.events[i].end.get();
    if (end != nullptr) last[static_cast<int>(execution.program->instructions[i].lane)] = end;
  }
  absl::Status status;
  const auto await = [&](LaneEvent* event) {
    if (event != nullptr) status.Update(event->Await([this] { return Interrupted(); }));
  };
  await(execution.launch_end.get());
  for (LaneEvent* event : last) await(event);
  const absl::Status first = FirstError();
  if (!first.ok()) return Fail(first);
  if (!status.ok()) return Fail(Annotate(status, execution.name));
  // On CUDA an abort ends a blocked collective without an error; its output is invalid.
  if (stop_->load(std::memory_order_relaxed)) return Fail(absl::CancelledError("asked to stop"));
  return operations_->Result(execution.result_slot);
}

absl::Status Executor::Interrupted() const {
  if (stop_->load(std::memory_order_relaxed)) return absl::CancelledError("asked to stop");
  return parts_.mesh->Health();
}

// Returns `status`, the root cause, after an abort: when a failed step returns, nothing runs except what
// waits for a peer that is gone (Lane::Drain). Errors that the abort causes are dropped.
absl::Status Executor::Fail(const absl::Status& status) {
  Abandon();
  return status;
}

void Executor::Abandon() {
  parts_.mesh->Abort();
  if (std::exchange(abandoned_, true)) return;
  const absl::Time deadline = absl::Now() + kDrain;
  bool idle = true;
  for (Lane* lane : AllLanes()) idle &= lane->Drain(deadline);
  for (Recorded& recorded : recorded_) {
    if (!idle && recorded.graph != nullptr) recorded.graph->Abandon();
  }
}

double Executor::SecondsSinceStepBefore() const {
  FSDPD_CHECK(before_collected_begin_ != nullptr);
  return collected_begin_->SecondsSince(*before_collected_begin_);
}

// For a launch, spans of updates are those of the previous step, with which the graph begins, unless those
// were submitted separately. The updates of a step that were part of the next launch appear in that step's
// spans.
void Executor::MeasureSpans(const Execution& execution) {
  spans_.clear();
  if (!MeasuresInstructions()) {
    const LaneEvent* last = execution.launch_end.get();
    for (const InstructionEvents& events : execution.events)
      last = events.end != nullptr ? events.end.get() : last;
    Span whole_step;
    whole_step.lane = LaneId::kCopy;  // Not counted in any total.
    whole_step.measured = false;
    spans_.assign(execution.events.size(), whole_step);
    spans_[0] = Span();
    spans_[0].end_seconds = last->SecondsSince(*execution.begin);
    return;
  }
  for (size_t i = 0; i < execution.events.size(); ++i) {
    const bool separate = execution.events[i].end != nullptr || execution.recorded == nullptr;
    const InstructionEvents& events = separate ? execution.events[i] : execution.recorded->events[i];
    const Instruction& instruction = execution.program->instructions[i];
    const Traffic traffic = TrafficOf(parts_.plan->spec.mesh, parts_.plan->layout, instruction);
    Span span;
    span.lane = instruction.lane;
    span.op = traffic.counted_as;
    span.received_bytes = traffic.received_bytes;
    span.of_step_before = !separate && i >= gradients_;
    span.measured = events.end != nullptr;
    if (span.measured) {
      span.start_seconds = events.start->SecondsSince(*execution.begin);
      span.end_seconds = events.end->SecondsSince(*execution.begin);
    }
    spans_.push_back(span);
  }
}

void Executor::RecordError(const absl::Status& status) {
  MutexLock lock(&mutex_);
  first_error_.Update(status);
}

absl::Status Executor::FirstError() const {
  MutexLock lock(&mutex_);
  return first_error_;
}

}  // namespace fsdpd
