// What the parts of the verifier share: the program under proof with what it is to do, how its instructions
// are named in messages, and the form of a finding. Only verify*.cc include this and the other verify_*.h.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

struct VerifyCase {
  const Program& program;
  const Layout& layout;
  const Spec& spec;

  int count() const { return static_cast<int>(program.instructions.size()); }
  int units() const { return static_cast<int>(layout.units.size()); }
  int buckets() const { return static_cast<int>(layout.buckets.size()); }
  const Instruction& At(int index) const { return program.instructions[index]; }
  bool training() const { return program.kind == ProgramKind::kTraining; }
  int micro_batches() const { return training() ? static_cast<int>(spec.micro_batches_per_step()) : 1; }
  // One Reduce per step, of the whole sum, instead of one per micro-batch.
  bool whole_grads() const { return !spec.shards_grads(); }
  // What units write gradients in.
  DType grad_type() const { return whole_grads() ? DType::kFp32 : spec.precision.grad_comm; }
  // Gradients of matrices come in instructions of their own.
  bool puts_off() const { return training() && spec.zero_bubble; }
  bool has_replicas() const { return spec.mesh.size(Axis::kReplicate) > 1; }
  // Replicas keep pieces of a shard, and publish them to each other.
  bool publishes() const { return has_replicas() && spec.outer_strategy == Strategy::kOptim; }

  // Of the bucket's state in host memory, on this rank; 0: it is on the device. An Update of the rest takes
  // turns with others'.
  int64_t OffloadedBytes(int bucket) const;
  bool Stages(int bucket) const { return OffloadedBytes(bucket) > 0; }

  // Whether the unit keeps in host memory what its backward needs: so many layers do, as evenly spread as can
  // be.
  bool KeepsAway(int unit) const;

  int runs() const { return static_cast<int>(layout.stage.runs.size()); }
  // The units of a run: [RunBegin, RunEnd). One stage's is all of them.
  int RunBegin(int run) const { return layout.stage.runs[run].begin; }
  int RunEnd(int run) const { return layout.stage.count == 1 ? units() : layout.stage.runs[run].end; }
  int RunOf(int unit) const;
  // A run takes what another stage has made, and makes what another stage takes.
  bool TakesHidden(int run) const { return layout.stage.number > 0 || run > 0; }
  bool GivesHidden(int run) const { return layout.stage.number + 1 < layout.stage.count || run + 1 < runs(); }

  // The buckets that a unit computes with: its own and its lender's.
  std::vector<int> BucketsOf(int unit) const;
  // Whether an instruction, a pass of the unit, computes with what the bucket's parameters are.
  bool ReadsParams(const Instruction& pass, int bucket) const;
  // The units that compute with a bucket: its owner and who borrows from that.
  std::vector<int> UsersOf(int bucket) const;

  // Also of instructions that name things which do not exist.
  std::string Name(int index) const;
  std::string Name(const Buffer& buffer) const;
  std::string BucketName(int bucket) const;
};

absl::Status Broken(int rule, const std::string& what);

// "Reduce layer.2 mb 1", for what should be there and is not.
std::string NameOf(const VerifyCase& verified, Op op, int unit, int micro_batch);

}  // namespace fsdpd
