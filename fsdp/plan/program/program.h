// Program: one training step as data. A program is a list of typed instructions on named lanes with explicit
// dependencies, and the lifetime and offset of every buffer. Strategy, mesh, prefetch, gradient accumulation,
// recompute and evaluation compile to different programs; the executor (fsdp/engine) is independent of them.
// The compiler and the data types are pure. CompileProgram never fails; Verify (verify.h) checks its output.
//
// A main piece is the part of a bucket's main parameters that a rank owns and updates: its shard or, if
// replicas shard the optimizer, a part of its shard.
//
// Instructions (b: bucket, u: unit, m: micro-batch) and their lanes:
//  Publish b      outer    replica all-gather: cast this rank's main piece, gather the shard
//  Gather b       gather   cast this rank's shard into the bucket, then all-gather in place
//  Forward u m    compute  forward of unit u on micro-batch m
//  OffloadKept u m  copy   copy the saved activations of Forward u m to host memory
//  DropKept u m   compute  free their device memory
//  FetchKept u m  fetch    copy them back for Backward u m
//  Release u      compute  free the gathered buckets of u
//  Backward u m   compute  backward of unit u; writes gradients into its buckets' reduce buffers
//  BackwardWeights u m  compute  weight gradients that Backward u m deferred
//  ForwardBackward u m  compute  forward and backward of the last unit in training
//  Reduce b m     reduce   reduce over the shard group into the gradient shard, setting or adding
//  ReduceOuter b  outer    reduce the gradient shard between replicas
//  Norm           reduce   all-reduce of gradient norm, loss, target count; divisor and skip flag
//  Fetch b        fetch    copy offloaded optimizer state of the main piece to the device
//  Update b       compute  optimizer step on the main piece; on lane update if its state is offloaded
//  Offload b      copy     copy the state that Fetch b brought, updated by Update b, back to host memory
//  Snapshot b     copy     copy the main piece and its moments to host memory, in steps that save
//  Loss           reduce   all-reduce of loss and target count
//  Send u m       send     send the output of unit u, the last of a run, to the next stage
//  Receive u m    receive  receive the input of unit u, the first of a run, from the previous stage
//  SendGrad u m   send     send the gradient of what Receive brought to the previous stage
//  ReceiveGrad u m  receive  receive the gradient of what Send sent, for unit u, the last of a run
//  SendTwin b     send     send the reduced gradient of a tied-embedding replica to the other stage
//  ReceiveTwin b  receive  receive it from the other stage, adding or setting
//
// Training, by sharding strategy (Spec::shards_*):
//  no_shard            Gather casts locally, on the compute lane, once per step; if units read parameters in
//                      place, it is a no-op that others depend on. Each Backward adds into the unit's whole
//                      fp32 gradient; one Reduce (an in-place all-reduce, of the last micro-batch) follows
//                      the last Backward. Update reads that buffer; there is no other gradient storage.
//  optim               Gather once per step. Gradients as in no_shard, but the one Reduce is a
//                      reduce-scatter into the gradient shard.
//  optim_grads         Gather once per step. Each Backward sets the reduce buffer, in grad_comm precision,
//                      and is followed by a Reduce: that of the first micro-batch sets the gradient shard,
//                      later ones add to it.
//  optim_grads_params  as optim_grads, but each pass gathers its unit and releases it afterwards. A unit
//                      that the next pass needs too stays resident (the first unit, from its backward to the
//                      next micro-batch's forward). A backward that reads no parameters (the embedding's)
//                      gathers none. With keep_gathered: as optim_grads, plus a Release after the last use.
// A gather starts as soon as its bytes are free and at most prefetch_bytes are waiting ahead of compute
// (unlimited if buckets stay resident for the step). Two Reduces may be in flight concurrently with the next
// Backward. Communication in less than fp32 needs a kWire buffer, which is live only during its Reduce.
//
// Replicas. The last micro-batch's Reduce b is followed by ReduceOuter b: an all-reduce of the gradient shard
// or, if replicas shard the optimizer (HFSDP), an in-place reduce-scatter into this rank's main piece. With
// HFSDP, each step begins with a Publish of every bucket, in forward order, into a kReplica buffer that
// Gather reads; its bytes are reserved for the whole step.
//
// Tied embeddings. A borrowing unit uses the lender's gathered buckets in addition to its own in Forward and
// Backward, so they must be resident. Its Backward precedes the lender's and writes the lender's reduce
// buffers like its own; the lender's Backward then always adds. Frozen buckets are gathered and released like
// others, and have no reduce buffer, Reduce or Update.
//
// Consecutive steps. There is no barrier between steps: `after_previous` names instructions of the previous
// step. The first Gather (or Publish) of a bucket waits for its Update; the first write of a buffer waits for
// every instruction of the previous step that may still use its bytes; a step's first Forward waits for
// nothing else.
//
// Checkpoints. If the job writes checkpoints, each step ends with a Snapshot of every bucket: first in the
// order of the Updates, then buckets without one. The bucket's next Update waits for its Snapshot; nothing
// else does, so the copies overlap the next step. Snapshots are in every step, so that all steps run one
// program, and do nothing in steps that do not save.
//
// Optimizer offload. Fetch, Update and Offload of each bucket run in forward order, with as many buckets in
// flight as fit into StagingCapacity. They overlap the next step, whose gathers wait only for the Updates of
// their own buckets; a step's first Fetch waits for the last Offload of the previous step. A Snapshot also
// reads the device copy, before its bytes are reused.
//
// Activation offload (OffloadsActivations). An OffloadKept follows each such Forward. Once kStagedLayers are
// in flight, the next one waits for the oldest, whose DropKept runs first. Layers still in flight when the
// forward ends are dropped before the first Backward. From then on, kStagedLayers are fetched ahead of their
// Backward, each as soon as the previous one was consumed. A FetchKept writes bytes that compute may have
// used, so it waits for all compute instructions listed before it.
//
// Pipeline parallelism. A program is that of one stage: its runs of units (contiguous ranges: model chunks,
// or virtual stages), and the sends and receives to its neighbors. After the last stage of a run, the first
// stage computes the next run. Stages run 1F1B (schedule.h): enough forwards for the last stage to start,
// then one backward per forward. A Receive is listed right before the turn through a run that needs it. There
// are kStageTransferSlots slots per direction and kind, so a transfer can overlap the previous turn. A
// Receive waits until the one kStageTransferSlots earlier was consumed; a pass with output waits until the
// output kStageTransferSlots earlier was sent. Norm waits for the last Send, and the first Receive of a step
// for the previous step's Norm, so all transfers in flight belong to one step. verify_stages.h checks that
// the stages' programs match.
//
// Zero-bubble (ZB-H1). A Backward defers its weight gradients. As soon as stage s has deferred more than s
// micro-batches, BackwardWeights of the oldest one follows; at the end of the step this work fills the
// bubble. Both write one buffer of whole gradients, which is reduced after the last of either.
//
// Tied embeddings over two stages (the first and the last). Each stage reduces its gradient. Then the
// borrower's stage sends its gradient to the lender's stage, which adds it and sends the sum back. Both
// update with the same values and stay identical.
//
// Evaluation is a separate program over the same units and bytes: one pass of Gather, Forward and Release,
// then Loss. It starts only after a training step has completed.
//
// A bucket has one address for the whole job. Autograd identifies saved parameters by address, so forward and
// backward must see them at the same place; evaluation must see them where units were bound.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/layout/layout.h"
#include "fsdp/plan/program/operation.h"

namespace fsdpd {

enum class Access { kRead, kWrite };

struct BufferUse {
  int buffer = 0;
  Access access = Access::kRead;
};

struct Instruction {
  Op op = Op::kForward;
  int unit = -1;         // -1: acts on no unit (e.g. Norm).
  int bucket = -1;       // -1: acts on no bucket.
  int micro_batch = -1;  // -1: not per micro-batch.
  LaneId lane = LaneId::kCompute;
  Group group = Group::kSelf;  // Communicates over this group, in this role.
  Role role = Role::kGather;
  bool accumulate = false;                 // Backward(s), Reduce: add to the buffer instead of setting it.
  Recompute recompute = Recompute::kNone;  // Forward, Backward: activation checkpointing.
  bool defers_grads = false;               // Backward: defers weight gradients to BackwardWeights.
  std::vector<int> after = {};           // Earlier instructions on other lanes; a lane itself runs in order.
  std::vector<int> after_previous = {};  // Instructions of the previous step on other lanes.
  std::vector<BufferUse> uses = {};
};

enum class BufferKind {
  kGathered,  // Parameters of a bucket, in BucketTypes::gathered; 0 bytes if read in place.
  kReduce,    // Whole gradient of a bucket, in BucketTypes::grad_comm.
  // For a Reduce in less than fp32: its sums (SumBytes), then a receive buffer as large as the kReduce
  // buffer.
  kWire,
  kReplica,  // Shard of a bucket, in BucketTypes::gathered, if main pieces are smaller than shards.
  kState,    // State in Bucket::offloaded, from its Fetch to its Offload.
};
constexpr int kBufferKinds = 5;
const char* NameOf(BufferKind kind);

// A range of the arena. Buffers may share bytes if their lifetimes do not overlap.
struct Buffer {
  BufferKind kind = BufferKind::kGathered;
  int bucket = 0;
  int64_t bytes = 0;
  int64_t offset = 0;  // In the arena; a multiple of 256.
  // Instruction indices, inclusive. A gathered bucket of a sharded unit has several intervals.
  struct Interval {
    int born = 0;
    int dies = 0;
  };
  std::vector<Interval> live;
};

// Stage transfer slots per kind: hidden states received and not yet consumed, hidden states not yet sent, and
// likewise gradients.
constexpr int kStageTransferSlots = 2;

// Device bytes for offloaded optimizer state in flight: the largest sum of two consecutive buckets, so that
// one can be fetched while the previous one is written back.
int64_t StagingCapacity(const Layout& layout);

// Maximum number of layers whose activations are being offloaded, or are fetched and not yet consumed.
constexpr size_t kStagedLayers = 2;

enum class ProgramKind { kTraining, kEvaluation };

struct Program {
  ProgramKind kind = ProgramKind::kTraining;
  std::vector<Instruction> instructions;
  std::vector<Buffer> buffers;
  int64_t arena_bytes = 0;
  int64_t state_bytes = 0;  // The last part of the arena, for kState buffers.
  // Lower bound for arena_bytes: the maximum occupied at one time. A reduce buffer is occupied until compute
  // waits for its Reduce, which is later than its last use in the list.
  int64_t live_peak_bytes = 0;
};

Program CompileProgram(const Spec& spec, const ModelFacts& model, const Layout& layout);

// Uses the buffers of the training program at the same offsets.
Program CompileEvaluation(const Spec& spec, const ModelFacts& model, const Layout& layout,
                          const Program& training);

// Bytes at the start of a kWire buffer for the fp32 sums of its Reduce, a multiple of 256. 0 if the sums go
// directly to the gradient shard, as a GPU's kernel always does.
int64_t SumBytes(const Spec& spec, const Bucket& bucket);

// One instruction as text: "#12 Backward layer.3 mb 0 on compute after #9".
std::string Describe(const Program& program, const Layout& layout, int instruction);

}  // namespace fsdpd
