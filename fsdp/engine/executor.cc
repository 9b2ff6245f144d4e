#include "fsdp/engine/executor.h"

#include <absl/strings/str_cat.h>

#include "base/check.h"
#include "fsdp/memory/torch_status.h"

namespace fsdpd {
namespace {

absl::Status Annotate(const absl::Status& status, const std::string& where) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

}  // namespace

Lanes MakeLanes(DeviceKind device, int device_index) {
  Lanes lanes;
  if (device == DeviceKind::kCpu) {
    lanes[static_cast<int>(LaneId::kCompute)] = MakeInlineLane();
    lanes[static_cast<int>(LaneId::kGather)] = MakeThreadLane();
    lanes[static_cast<int>(LaneId::kReduce)] = MakeThreadLane();
  } else {
    lanes[static_cast<int>(LaneId::kCompute)] = MakeStreamLane(device_index, /*high_priority=*/false);
    lanes[static_cast<int>(LaneId::kGather)] = MakeStreamLane(device_index, /*high_priority=*/true);
    lanes[static_cast<int>(LaneId::kReduce)] = MakeStreamLane(device_index, /*high_priority=*/true);
  }
  return lanes;
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Make(const OperationParts& parts, Lanes lanes) {
  std::unique_ptr<Executor> executor(new Executor(parts, std::move(lanes)));
  executor->marks_.resize(parts.plan->program.instructions.size());
  Lane* compute = executor->lane(LaneId::kCompute);
  compute->Submit([&executor] {
    executor->operations_ = std::make_unique<Operations>(executor->parts_);
    return absl::OkStatus();
  });
  FSDPD_RETURN_IF_ERROR(compute->Synchronize());
  return executor;
}

absl::StatusOr<Operations::StepResult> Executor::Step(int64_t step, double learning_rate,
                                                      const std::vector<Batch>& batches,
                                                      const std::atomic<bool>& stop,
                                                      const std::function<void()>& while_running) {
  Lane* compute = lane(LaneId::kCompute);
  const MarkPtr begin = compute->Record();
  compute->Submit([&] {
    operations_->BeginStep(step, learning_rate, batches);
    return absl::OkStatus();
  });
  for (size_t i = 0; i < marks_.size(); ++i) {
    if (stop.load(std::memory_order_relaxed)) return Fail(absl::CancelledError("asked to stop"));
    SubmitInstruction(static_cast<int>(i));
    if (!FirstError().ok()) return Fail(FirstError());
  }
  while_running();
  const absl::Status drained = Drain();
  if (!drained.ok()) return Fail(drained);
  MeasureSpans(*begin);
  Operations::StepResult result;
  const absl::Status read = CatchTorch([&] {
    result = operations_->Result();
    return absl::OkStatus();
  });
  if (!read.ok()) return Fail(read);
  return result;
}

void Executor::SubmitInstruction(int index) {
  const Instruction& instruction = parts_.plan->program.instructions[index];
  Lane* lane = this->lane(instruction.lane);
  for (int earlier : instruction.after) lane->Wait(marks_[earlier].end);
  marks_[index].start = lane->Record();
  lane->Submit([this, &instruction, index] {
    const absl::Status status = CatchTorch([&] { return operations_->Run(instruction); });
    if (!status.ok()) {
      RecordError(Annotate(status, Describe(parts_.plan->program, parts_.plan->layout, index)));
    }
    return status;
  });
  marks_[index].end = lane->Record();
}

// Waits for every lane, the failed ones included: nothing runs when a step returns.
absl::Status Executor::Drain() {
  absl::Status status;
  for (const std::unique_ptr<Lane>& lane : lanes_) status.Update(lane->Synchronize());
  const absl::Status first = FirstError();
  return first.ok() ? status : first;
}

absl::Status Executor::Fail(absl::Status status) {
  parts_.gather->Abort();
  parts_.reduce->Abort();
  Drain().IgnoreError();  // `status` came first; what the abort caused is a consequence.
  return status;
}

void Executor::MeasureSpans(const Mark& begin) {
  const Plan& plan = *parts_.plan;
  const bool sharded = plan.spec.strategy == Strategy::kOptimGradsParams;
  spans_.clear();
  for (size_t i = 0; i < marks_.size(); ++i) {
    const Instruction& instruction = plan.program.instructions[i];
    Span span;
    span.lane = instruction.lane;
    span.start_seconds = marks_[i].start->SecondsSince(begin);
    span.end_seconds = marks_[i].end->SecondsSince(begin);
    int64_t bytes = 0;
    if (instruction.op == Op::kGather && sharded) {
      span.op = v1::COMM_OP_ALL_GATHER;
      bytes = plan.layout.units[instruction.unit].bucket_elements * BytesOf(plan.spec.compute);
    } else if (instruction.op == Op::kReduce) {
      span.op = sharded ? v1::COMM_OP_REDUCE_SCATTER : v1::COMM_OP_ALL_REDUCE;
      bytes = plan.layout.units[instruction.unit].bucket_elements * BytesOf(DType::kFp32);
    } else if (instruction.op == Op::kNorm) {
      span.op = v1::COMM_OP_ALL_REDUCE;
      bytes = 2 * BytesOf(DType::kFp32);
    }
    span.received_bytes = ReceivedBytes(span.op, bytes, plan.spec.world);
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
