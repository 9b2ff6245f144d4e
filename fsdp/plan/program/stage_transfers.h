// Point-to-point communication of a pipeline stage: emits a Receive before each turn (pass) through a run of
// units (model chunk) and a Send after it. Does nothing with one stage. kStageTransferSlots limits the
// transfers in flight, i.e. how many turns ahead a Receive can run; lanes do not wait for each other.
//
// A Receive is listed no earlier than it is needed. On GPUs it is a kernel that waits for another rank, and
// instructions listed after it may have to wait for it (verify_stages.h, rule 14).
//
// Call order: per pass ReceiveFor, the pass itself (which waits for WaitsFor()), SendAfter.
#pragma once

#include <vector>

#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

class StageTransfers {
 public:
  // All must outlive this object.
  StageTransfers(const Layout& layout, const Schedule& passes, ProgramWriter* writer);

  void ReceiveFor(int pass);
  // Dependencies of a pass: the Receive of its input, and the Send that frees a slot for its output; -1:
  // none.
  std::vector<int> WaitsFor(int pass) const;
  void SendAfter(int pass);
  // The first Receive, or -1. It waits for the end of the previous step, so transfers in flight belong to one
  // step.
  int first_receive() const { return first_receive_; }

 private:
  int Append(Op op, const Pass& pass, int after);

  const Layout& layout_;
  const Schedule& passes_;
  ProgramWriter* const writer_;
  std::vector<int> begins_;    // Passes that start a turn with input from another stage.
  std::vector<int> begun_;     // Instructions of the turns in begins_ that are already listed.
  std::vector<int> received_;  // By pass: its Receive, or -1.
  std::vector<int> sends_;     // Instructions, like sends_grads_.
  std::vector<int> sends_grads_;
  int first_receive_ = -1;
};

}  // namespace fsdpd
