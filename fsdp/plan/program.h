// One training step as data: typed instructions on named lanes with explicit dependencies, and the lifetime
// and place of every buffer they touch. Strategy, prefetch, accumulation and recompute are different
// programs; the executor (fsdp/engine) knows none of them.
//
// optim_grads_params, per step:
//   Gather u      cast the own shard of main parameters into the bucket, all-gather in place   (gather lane)
//   Forward u m   run unit u on micro-batch m                                                  (compute lane)
//   Release u     the bucket's bytes may be used again                                         (compute lane)
//   Backward u m  gradients of unit u into its reduce buffer                                   (compute lane)
//   Reduce u m    reduce-scatter and add to the gradient shard; the first micro-batch sets it  (reduce lane)
//   Norm          gradient norm and loss over all ranks, clip factor on the device             (reduce lane)
//   Update u      AdamW on the own shard                                                       (compute lane)
// Forward order gathers each unit, runs it and releases it; backward gathers again. The last unit keeps its
// bucket from its forward to its backward. A Gather starts as soon as its bytes are free and no more than
// prefetch_bytes would wait ahead of compute; two Reduces may be in flight beside the next Backward.
//
// no_shard differs in: Gather (no communication, compute lane) once per step into a bucket of its own per
// unit and no Release; Backward adds into a gradient bucket of its own per unit (a kReduce buffer, live until
// Update); one Reduce (all-reduce in place, micro_batch = the last) after the last micro-batch's Backward;
// Update reads that bucket, so no other gradient storage exists.
//
// A unit's bucket has one address for the whole step: autograd finds saved parameters by address, so forward
// and backward must see them at the same place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/layout.h"

namespace fsdpd {

enum class Op { kGather, kForward, kRelease, kBackward, kReduce, kNorm, kUpdate };
enum class LaneId { kCompute, kGather, kReduce };
constexpr int kLanes = 3;

const char* NameOf(Op op);
const char* NameOf(LaneId lane);

enum class Access { kRead, kWrite };

struct BufferUse {
  int buffer = 0;
  Access access = Access::kRead;
};

struct Instruction {
  Op op = Op::kForward;
  int unit = -1;         // -1 for Norm.
  int micro_batch = -1;  // -1 where it has no meaning.
  LaneId lane = LaneId::kCompute;
  bool accumulate = false;  // Backward, Reduce: add to what is there instead of setting it.
  std::vector<int> after;   // Indices of earlier instructions on other lanes; a lane itself is in order.
  std::vector<BufferUse> uses;
};

enum class BufferKind {
  kGathered,  // A unit's parameters in compute precision.
  kReduce,    // A unit's whole gradient on its way to the shards.
};

// Bytes of the arena. Two buffers may share bytes when their lifetimes do not meet.
struct Buffer {
  BufferKind kind = BufferKind::kGathered;
  int unit = 0;
  int64_t bytes = 0;
  int64_t offset = 0;  // In the arena; a multiple of 256.
  // Instruction indices, both included. A gathered bucket of a sharded unit lives in several intervals.
  struct Interval {
    int born = 0;
    int dies = 0;
  };
  std::vector<Interval> live;
};

struct Program {
  std::vector<Instruction> instructions;
  std::vector<Buffer> buffers;
  int64_t arena_bytes = 0;
  // Lower bound for arena_bytes: the most that is occupied at once. A reduce buffer is occupied until compute
  // has waited for its Reduce, which is later than its last use in the list.
  int64_t live_peak_bytes = 0;
  uint64_t hash = 0;  // Over layout, instructions, buffers and the spec's numbers; equal on all ranks.
};

Program CompileProgram(const Spec& spec, const Layout& layout);

// One instruction as people read it: "#12 Backward layer.3 mb 0 on compute after #9".
std::string Describe(const Program& program, const Layout& layout, int instruction);

}  // namespace fsdpd
