// What layers keep in host memory between forward and backward, in a training program: put there behind each
// forward, and brought back ahead of its backward, kStagedLayers at a time.
//
// Call order: for each pass Before, the pass itself, which waits for WaitsFor, and After. Of a job that keeps
// nothing there all of them do nothing. REQUIRES: one stage, and so one micro-batch at a time.
#pragma once

#include <deque>
#include <vector>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

class StagedActivations {
 public:
  // The writer must outlive this.
  StagedActivations(const Spec& spec, const ModelFacts& model, ProgramWriter* writer);

  void Before(const Pass& pass);
  // -1: for nothing.
  int WaitsFor(const Pass& pass) const;
  // The pass must be the last on the compute lane.
  void After(const Pass& pass);

 private:
  int Append(Op op, int unit, int micro_batch, int after);
  void Drop(int micro_batch);
  void Fetch(int micro_batch);

  ProgramWriter* const writer_;
  std::vector<bool> away_;      // By unit.
  std::vector<int> moved_;      // By unit: its OffloadKept, and later its FetchKept.
  std::deque<int> leaving_;     // Units that are on their way, the oldest first,
  std::vector<int> returning_;  // and those that have left, the last one first to come back.
};

}  // namespace fsdpd
