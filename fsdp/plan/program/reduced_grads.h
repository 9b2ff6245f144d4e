// Gradient side of a training program: the reduce buffers that a Backward sets or adds to, the instructions
// that it must wait for, and the Reduces that follow.
//
// Call order: per backward pass (BackwardWeights included) Backward, then Reduce if the pass completes the
// unit's gradient. After the last pass: Norm, Update of each bucket that changes, Occupy.
#pragma once

#include <vector>

#include "fsdp/plan/program/program_writer.h"

namespace fsdpd {

class ReducedGrads {
 public:
  // The writer must outlive this object.
  ReducedGrads(const Spec& spec, const Layout& layout, ProgramWriter* writer);

  // Appends the unit's Backward. Adds its buffer writes, and dependencies in addition to those in the
  // arguments.
  void Backward(Instruction backward, std::vector<int> after);
  // Appends the Reduces of a unit whose gradient for that micro-batch is complete.
  void Reduce(int unit, int micro_batch);
  int Norm();
  // `fetch`: the Fetch of the bucket's state, or -1.
  int Update(int bucket, int norm, int fetch);
  void Occupy();

  // The bucket's Update. For a bucket that no step changes: an instruction that runs after everything except
  // Updates.
  int UpdateOrEnd(int bucket) const;

 private:
  // Buckets that are reduced after one Backward.
  struct ReduceGroup {
    std::vector<int> buckets;
    std::vector<int> set_by;  // Per bucket: the Backward that set its buffer.
    int backward = -1;
    int last_reduce = -1;
  };

  bool IsSharded(int bucket) const;
  std::vector<int> TrainableBuckets(int unit) const;
  // The unit's own buckets and those it borrows.
  std::vector<int> WrittenBy(int unit) const;
  int ReduceBucket(int bucket, int micro_batch, int backward);
  void ReduceOuter(int bucket, int reduce);
  void SumTiedReplica(int bucket);

  const Layout& layout_;
  ProgramWriter* const writer_;
  const bool whole_;  // Gradients stay unsharded until the step's single Reduce.
  const int last_micro_batch_;
  std::vector<bool> lends_;  // By unit.
  // By bucket: the last Backward that set its buffer, its last Reduce, its Update; -1: none yet.
  std::vector<int> set_by_, reduced_, update_;
  std::vector<ReduceGroup> groups_;
  int last_backward_ = -1;
};

}  // namespace fsdpd
