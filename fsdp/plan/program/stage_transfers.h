// What crosses between a stage and its neighbours in a program: a Receive before each turn through a run of
// units, and a Send after it. Where there is one stage nothing does. kStageTransferSlots bound what is there
// at a time: so many turns ahead a Receive may be under way, as lanes do not wait for each other.
//
// It is listed no earlier than where it is needed: on GPUs it is a kernel that waits for another rank, and
// what is listed behind it may have to wait for it (verify_stages.h, rule 12).
//
// Call order: for each pass ReceiveFor, the pass itself (which waits for WaitsFor()), SendAfter.
#pragma once

#include <vector>

#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

class StageTransfers {
 public:
  // Both must outlive this.
  StageTransfers(const Layout& layout, const Schedule& passes, ProgramWriter* writer);

  void ReceiveFor(int pass);
  // For what it takes, and for room for what it makes; -1 is nothing.
  std::vector<int> WaitsFor(int pass) const;
  void SendAfter(int pass);
  // The first, or -1. What crosses is of one step: it waits for what ends the step before.
  int first_receive() const { return first_receive_; }

 private:
  int Append(Op op, const Pass& pass, int after);

  const Layout& layout_;
  const Schedule& passes_;
  ProgramWriter* const writer_;
  std::vector<int> begins_;    // Passes at which a turn begins that needs what another stage has made.
  std::vector<int> begun_;     // Of these, the instructions of those that are listed.
  std::vector<int> received_;  // By pass: the Receive that it needs, or -1.
  std::vector<int> sends_;     // Instructions, as the next.
  std::vector<int> sends_grads_;
  int first_receive_ = -1;
};

}  // namespace fsdpd
