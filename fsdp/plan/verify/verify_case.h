// Shared context of the verifier's parts: the program under verification and its layout and spec, instruction
// names for messages, and the error format. Included only by verify*.cc and verify_*.h.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

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
  // One Reduce per step, of the accumulated gradient, instead of one per micro-batch.
  bool full_grads() const { return !spec.shards_grads(); }
  // Type in which units write gradients.
  DType grad_type() const { return full_grads() ? DType::kFp32 : spec.precision.grad_comm; }
  // Weight gradients are separate instructions (zero-bubble).
  bool defers_grads() const { return training() && spec.zero_bubble; }
  bool has_replicas() const { return spec.mesh.size(Axis::kReplicate) > 1; }
  // Replicas hold main pieces and all-gather them with Publish (HFSDP).
  bool publishes() const { return has_replicas() && spec.outer_strategy == Strategy::kOptim; }

  // Offloaded bytes of the bucket's state on this rank; 0: on the device. Only Updates of offloaded state are
  // staged.
  int64_t OffloadedBytes(int bucket) const;
  bool OffloadsState(int bucket) const { return OffloadedBytes(bucket) > 0; }

  // Whether the unit offloads its saved activations. Offloaded layers are spread as evenly as possible.
  bool OffloadsActivationsOf(int unit) const;

  int runs() const { return static_cast<int>(layout.stage.runs.size()); }
  // The units of a run: [RunBegin, RunEnd). With one stage: all units.
  int RunBegin(int run) const { return layout.stage.runs[run].begin; }
  int RunEnd(int run) const { return layout.stage.count == 1 ? units() : layout.stage.runs[run].end; }
  int RunOf(int unit) const;
  // A run's input comes from another stage; its output goes to another stage.
  bool ReceivesInput(int run) const { return layout.stage.number > 0 || run > 0; }
  bool SendsOutput(int run) const { return layout.stage.number + 1 < layout.stage.count || run + 1 < runs(); }

  // The buckets that a unit uses: its own and its lender's.
  std::vector<int> BucketsOf(int unit) const;
  // Whether a pass of a unit reads the bucket's parameters.
  bool ReadsParams(const Instruction& pass, int bucket) const;
  // The units that use a bucket: its owner and its borrowers.
  std::vector<int> UsersOf(int bucket) const;

  // Also valid for instructions with invalid operands.
  std::string Name(int index) const;
  std::string Name(const Buffer& buffer) const;
  std::string BucketName(int bucket) const;
};

template <typename... Parts>
absl::Status RuleError(int rule, const Parts&... what) {
  return absl::InternalError(absl::StrCat("program violates rule ", rule, ": ", what...));
}

// Name of a missing instruction: "Reduce layer.2 mb 1".
std::string NameOf(const VerifyCase& verified, Op op, int unit, int micro_batch);

}  // namespace fsdpd
