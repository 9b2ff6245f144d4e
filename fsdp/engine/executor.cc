#include "fsdp/engine/executor.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "fsdp/plan/program/traffic.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// What streams have after an abort. A rank that is told to leave has as long again (fsdp/stop_signal).
constexpr absl::Duration kDrain = absl::Milliseconds(250);

absl::Status Annotate(const absl::Status& status, const std::string& where) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

}  // namespace

Lanes MakeLanes(DeviceKind device, int device_index) {
  Lanes lanes;
  for (int i = 0; i < kLanes; ++i) {
    const bool compute = static_cast<LaneId>(i) == LaneId::kCompute;
    if (device == DeviceKind::kCuda) {
      lanes[i] = MakeStreamLane(device_index, /*high_priority=*/!compute);
    } else {
      lanes[i] = compute ? MakeInlineLane() : MakeThreadLane();
    }
  }
  return lanes;
}

Lanes MakeRunAheadLanes() {
  Lanes lanes;
  for (std::unique_ptr<Lane>& lane : lanes) lane = MakeThreadLane();
  return lanes;
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Make(const OperationParts& parts, Lanes lanes,
                                                         const std::atomic<bool>* stop, FlightPage* flight) {
  std::unique_ptr<Executor> executor(new Executor(parts, std::move(lanes), stop));
  if (flight != nullptr) executor->ShowProgress(flight);
  Lane* compute = executor->lane(LaneId::kCompute);
  compute->Submit([&executor] {
    executor->operations_ = std::make_unique<Operations>(executor->parts_);
    return absl::OkStatus();
  });
  FSDPD_RETURN_IF_ERROR(compute->Synchronize());
  return executor;
}

// A rank that nobody could find when it hangs trains all the same.
void Executor::ShowProgress(FlightPage* flight) {
  static_assert(kLanes <= kMaxFlightLanes && Lane::kProgressBytes <= static_cast<int64_t>(kFlightWordBytes));
  for (int i = 0; i < kLanes; ++i) {
    const absl::Status shown = lanes_[i]->ShowProgress(flight->word(i));
    if (!shown.ok())
      LogWarning("where the %s lane stands is not recorded: %s", NameOf(static_cast<LaneId>(i)),
                 shown.message());
  }
}

Executor::~Executor() {
  if (!open_.empty()) Abandon();
  if (abandoned_) return;
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->Synchronize().IgnoreError();
}

absl::Status Executor::Submit(const StepOrder& order, std::vector<Batch> batches) {
  FSDPD_CHECK(in_flight() < kMaxInFlight);
  const auto execution = std::make_shared<Execution>();
  execution->program = &parts_.plan->program;
  execution->name = absl::StrCat("step ", order.step);
  execution->step = order.step;
  execution->saves = order.saves;
  execution->result_slot = static_cast<int>(submitted_++ % kMaxInFlight);
  FSDPD_RETURN_IF_ERROR(
      SubmitAll(execution.get(), [this, order, batches = std::move(batches), slot = execution->result_slot] {
        operations_->BeginStep(order, batches, slot);
        return absl::OkStatus();
      }));
  open_.push_back(execution);
  previous_ = execution;
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Executor::Collect() {
  FSDPD_CHECK(!open_.empty());
  const ExecutionPtr execution = std::move(open_.front());
  open_.pop_front();
  FSDPD_ASSIGN_OR_RETURN(const StepResult result, Await(*execution));
  MeasureSpans(*execution);
  return result;
}

absl::StatusOr<StepResult> Executor::Evaluate(const Program& program, const Batch& batch) {
  FSDPD_CHECK(open_.empty());
  Execution execution;
  execution.program = &program;
  execution.name = "evaluation";
  execution.step = previous_ == nullptr ? 0 : previous_->step;
  FSDPD_RETURN_IF_ERROR(SubmitAll(&execution, [this, &batch] {
    operations_->BeginEvaluation(batch, /*result_slot=*/0);
    return absl::OkStatus();
  }));
  return Await(execution);
}

absl::Status Executor::SubmitAll(Execution* execution, std::function<absl::Status()> begin) {
  execution->marks.resize(execution->program->instructions.size());
  execution->begin = lane(LaneId::kCompute)->Record();
  SubmitWork(LaneId::kCompute, execution->name, std::move(begin));
  for (size_t i = 0; i < execution->marks.size(); ++i) {
    if (stop_->load(std::memory_order_relaxed)) return Fail(absl::CancelledError("asked to stop"));
    SubmitInstruction(execution, static_cast<int>(i));
    const absl::Status error = FirstError();
    if (!error.ok()) return Fail(error);
  }
  return absl::OkStatus();
}

void Executor::SubmitInstruction(Execution* execution, int index) {
  const Instruction& instruction = execution->program->instructions[index];
  Lane* lane = this->lane(instruction.lane);
  for (const int earlier : instruction.after) lane->Wait(execution->marks[earlier].end);
  if (previous_ != nullptr && previous_->program == execution->program) {
    for (const int earlier : instruction.after_previous) lane->Wait(previous_->marks[earlier].end);
  }
  LaneProgress progress;
  progress.step = execution->step;
  progress.instruction = index;
  progress.evaluation = execution->program->kind == ProgramKind::kEvaluation;
  progress.inside = true;
  lane->Progress(PackProgress(progress));
  Marks& marks = execution->marks[index];
  marks.start = lane->Record();
  lane->Submit([this, &instruction, index, program = execution->program, saves = execution->saves,
                name = execution->name] {
    const absl::Status status = CatchTorch([&] { return operations_->Run(instruction, saves); });
    if (!status.ok()) {
      RecordError(Annotate(status, absl::StrCat(name, ": ", Describe(*program, parts_.plan->layout, index))));
    }
    return status;
  });
  // Before the mark: when others go on, it is said that this has ended.
  progress.inside = false;
  lane->Progress(PackProgress(progress));
  marks.end = lane->Record();
}

void Executor::SubmitWork(LaneId lane, std::string where, std::function<absl::Status()> work) {
  this->lane(lane)->Submit([this, where = std::move(where), work = std::move(work)] {
    const absl::Status status = CatchTorch(work);
    if (!status.ok()) RecordError(Annotate(status, where));
    return status;
  });
}

// Waits for the last instruction of each lane, and so for all.
absl::StatusOr<StepResult> Executor::Await(const Execution& execution) {
  std::array<Mark*, kLanes> last = {};
  for (size_t i = 0; i < execution.marks.size(); ++i) {
    last[static_cast<int>(execution.program->instructions[i].lane)] = execution.marks[i].end.get();
  }
  absl::Status status;
  for (Mark* mark : last) {
    if (mark != nullptr) status.Update(mark->Await([this] { return Interrupted(); }));
  }
  const absl::Status first = FirstError();
  if (!first.ok()) return Fail(first);
  if (!status.ok()) return Fail(Annotate(status, execution.name));
  // On CUDA an abort ends what a collective waits for without a word: what it left is no result.
  if (stop_->load(std::memory_order_relaxed)) return Fail(absl::CancelledError("asked to stop"));
  return operations_->Result(execution.result_slot);
}

absl::Status Executor::Interrupted() const {
  if (stop_->load(std::memory_order_relaxed)) return absl::CancelledError("asked to stop");
  return parts_.mesh->Health();
}

// Nothing runs when a failed step returns, but what waits for a peer that is gone (Lane::Drain). `status`
// came first; what the abort causes is a consequence.
absl::Status Executor::Fail(const absl::Status& status) {
  Abandon();
  return status;
}

void Executor::Abandon() {
  parts_.mesh->Abort();
  if (std::exchange(abandoned_, true)) return;
  const absl::Time deadline = absl::Now() + kDrain;
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->Drain(deadline);
}

void Executor::MeasureSpans(const Execution& execution) {
  spans_.clear();
  for (size_t i = 0; i < execution.marks.size(); ++i) {
    const Instruction& instruction = execution.program->instructions[i];
    const Traffic traffic = TrafficOf(parts_.plan->spec.mesh, parts_.plan->layout, instruction);
    Span span;
    span.lane = instruction.lane;
    span.op = traffic.counted_as;
    span.received_bytes = traffic.received_bytes;
    span.start_seconds = execution.marks[i].start->SecondsSince(*execution.begin);
    span.end_seconds = execution.marks[i].end->SecondsSince(*execution.begin);
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
