// Activation offload in a training program: copies saved activations to host memory after each forward, and
// back ahead of the backward, kStagedLayers at a time.
//
// Call order: per pass Before, the pass itself (which waits for WaitsFor), After. All do nothing if the job
// offloads no activations. REQUIRES: one stage, and so one micro-batch at a time.
#pragma once

#include <deque>
#include <vector>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

class StagedActivations {
 public:
  // The writer must outlive this object.
  StagedActivations(const Spec& spec, const ModelFacts& model, ProgramWriter* writer);

  void Before(const Pass& pass);
  // -1: none.
  int WaitsFor(const Pass& pass) const;
  // The pass must be the last instruction on the compute lane.
  void After(const Pass& pass);

 private:
  int Append(Op op, int unit, int micro_batch, int after);
  void Drop(int micro_batch);
  void Fetch(int micro_batch);

  ProgramWriter* const writer_;
  std::vector<bool> offloaded_;  // By unit: offloads its activations.
  std::vector<int> moved_;       // By unit: its OffloadKept, later its FetchKept.
  std::deque<int> in_flight_;    // Units being offloaded, oldest first.
  std::vector<int> to_fetch_;    // Units offloaded, to be fetched from the back.
};

}  // namespace fsdpd
