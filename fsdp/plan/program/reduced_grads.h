// The gradient side of a training program: which reduce buffers a Backward fills, setting or adding, what it
// waits for before it may, and the Reduces that follow.
//
// Call order: per pass back (of what was put off, too) Backward, then Reduce where it ends the unit's
// gradient; after the last one Norm, an Update of each bucket that changes, and Occupy.
#pragma once

#include <vector>

#include "fsdp/plan/program/program_writer.h"

namespace fsdpd {

class ReducedGrads {
 public:
  // The writer must outlive this.
  ReducedGrads(const Spec& spec, const Layout& layout, ProgramWriter* writer);

  // Appends the unit's Backward with what it writes and must wait for beside what is in the arguments.
  void Backward(Instruction backward, std::vector<int> after);
  // The Reduces that follow the last instruction that adds to gradients of that unit and micro-batch.
  void Reduce(int unit, int micro_batch);
  int Norm();
  // `fetch`: what brings the bucket's state, or -1.
  int Update(int bucket, int norm, int fetch);
  void Occupy();

  // Of a bucket; for one that nothing changes, an instruction that everything but Updates has ended before.
  int UpdateOrEnd(int bucket) const;

 private:
  // What is reduced after one Backward.
  struct ReduceGroup {
    std::vector<int> buckets;
    std::vector<int> set_by;  // Per bucket: the Backward that set its buffer.
    int backward = -1;
    int last_reduce = -1;
  };

  bool IsSharded(int bucket) const;
  std::vector<int> TrainableBuckets(int unit) const;
  // The unit's own ones and those it borrows.
  std::vector<int> WrittenBy(int unit) const;
  int ReduceBucket(int bucket, int micro_batch, int backward);
  void ReduceOuter(int bucket, int reduce);
  void SumTwin(int bucket);

  const Layout& layout_;
  ProgramWriter* const writer_;
  const bool whole_;  // Gradients stay whole until the step's one Reduce.
  const int last_micro_batch_;
  std::vector<bool> lends_;  // By unit.
  // By bucket: the last Backward that set its buffer, its last Reduce, its Update; -1 before.
  std::vector<int> set_by_, reduced_, update_;
  std::vector<ReduceGroup> groups_;
  int last_backward_ = -1;
};

}  // namespace fsdpd
