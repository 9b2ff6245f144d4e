// What crosses between a stage and its neighbours in a program: a Receive before each run through the stage,
// one run ahead of where it is needed, and a Send after it. Where there is one stage nothing does.
//
// Call order: for each pass ReceiveWhatMayStart, the pass itself (which waits for Received()), SendAfter.
#pragma once

#include <vector>

#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

class Crossings {
 public:
  // Both must outlive this.
  Crossings(const Layout& layout, const Schedule& passes, ProgramWriter* writer);

  void ReceiveWhatMayStart(int pass);
  // What the pass waits for, or -1.
  int Received(int pass) const { return received_[pass]; }
  void SendAfter(int pass);
  // The first, or -1. What crosses is of one step: it waits for what ends the step before.
  int first_receive() const { return first_receive_; }

 private:
  int Append(Op op, const Pass& pass, std::vector<int> after);

  const Layout& layout_;
  const Schedule& passes_;
  ProgramWriter* const writer_;
  std::vector<int> begins_;    // Passes at which a run through the stage begins.
  std::vector<int> received_;  // By pass: the Receive that it needs, or -1.
  size_t next_ = 0;            // Of begins_: the first whose Receive is not listed.
  int first_receive_ = -1;
};

}  // namespace fsdpd
