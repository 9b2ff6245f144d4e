// Runs a program once per step over three lanes: each instruction waits for the marks it depends on, is
// submitted to its lane, and leaves marks for others and for telemetry. It knows lanes and marks; what an
// instruction does is operations.h, when it is due is the program.
//
// The host runs ahead of the lanes and waits for nothing until all instructions of the step are submitted. An
// error of one lane stops the submission, aborts both communicators (so that no lane stays blocked in a
// collective) and comes back with the instruction in its text.
//
// Thread safety: one thread drives it. Errors: that of the first instruction that failed; CANCELLED when
// `stop` was seen between two instructions. After any error the executor is unusable.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "fsdp/comm/lane.h"
#include "fsdp/engine/operations.h"
#include "fsdp/telemetry/step_timing.h"

namespace fsdpd {

using Lanes = std::array<std::unique_ptr<Lane>, kLanes>;  // By LaneId.

// CPU: compute on the calling thread, gather and reduce on threads of their own. CUDA: three streams, none of
// them the default one, which would order itself with all others; the two that communicate have high
// priority, so that their small kernels start although compute fills the device.
Lanes MakeLanes(DeviceKind device, int device_index);

class Executor {
 public:
  // Makes the operations on the compute lane. LibTorch's errors come back as Status.
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const OperationParts& parts, Lanes lanes);

  // `while_running` is called once, when all instructions are submitted: host work that need not wait.
  absl::StatusOr<Operations::StepResult> Step(int64_t step, double learning_rate,
                                              const std::vector<Batch>& batches,
                                              const std::atomic<bool>& stop,
                                              const std::function<void()>& while_running);

  // Of the last step, in the program's order.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  struct Marks {
    MarkPtr start;
    MarkPtr end;
  };

  Executor(const OperationParts& parts, Lanes lanes) : parts_(parts), lanes_(std::move(lanes)) {}

  Lane* lane(LaneId id) { return lanes_[static_cast<int>(id)].get(); }
  void SubmitInstruction(int index);
  absl::Status Drain();
  absl::Status Fail(absl::Status status);
  void MeasureSpans(const Mark& begin);
  void RecordError(const absl::Status& status);
  absl::Status FirstError() const;

  const OperationParts parts_;
  Lanes lanes_;
  std::unique_ptr<Operations> operations_;
  std::vector<Marks> marks_;  // By instruction.
  std::vector<Span> spans_;

  mutable Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);  // Lanes on threads write it.
};

}  // namespace fsdpd
