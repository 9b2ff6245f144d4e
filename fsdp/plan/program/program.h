// One training step as data: typed instructions on named lanes with explicit dependencies, and the lifetime
// and place of every buffer they touch. Strategy, mesh, prefetch, accumulation, recompute and evaluation are
// different programs; the executor (fsdp/engine) knows none of them.
//
//   Publish b      outer    cast the own main piece, all-gather between replicas into the shard's replica
//   Gather b       gather   cast the own shard into the bucket, all-gather of shards in place
//   Forward u m    compute  run unit u on micro-batch m
//   OffloadKept u m  copy   what Forward u m keeps, into host memory
//   DropKept u m   compute  its bytes on the device may be used again
//   FetchKept u m  fetch    it comes back, for Backward u m
//   Release u      compute  the bytes of u's buckets may be used again
//   Backward u m   compute  gradients of unit u into its buckets' reduce buffers
//   BackwardWeights u m  compute  gradients of matrices that Backward u m has put off
//   ForwardBackward u m  compute  both, of the last unit in training
//   Reduce b m     reduce   reduce over the shard group into the gradient shard, setting or adding
//   ReduceOuter b  outer    reduce the gradient shard between replicas
//   Norm           reduce   gradient norm, loss and token count over all ranks; divisor and skip flag
//   Fetch b        fetch    what lies in host memory of the own main piece and its moments, onto the device
//   Update b       compute  the optimizer on the own main piece; of what a Fetch brings on lane update
//   Offload b      copy     what Fetch b brought, as Update b left it, back into host memory
//   Snapshot b     copy     the own main piece and its moments into host memory, in steps that save
//   Loss           reduce   loss and token count over all ranks
//   Send u m       send     what unit u, a run's last, made of micro-batch m, to the next stage
//   Receive u m    receive  what the stage before made of it, for unit u, a run's first
//   SendGrad u m   send     the gradient of what Receive brought, to the stage before
//   ReceiveGrad u m  receive  the gradient of what Send took away, for unit u, a run's last
//   SendTwin b     send     the reduced gradient of a bucket that another stage has too, to that
//   ReceiveTwin b  receive  likewise from there, adding or setting
//
// Training, by what the strategy keeps in parts (Spec::shards_*):
//   no_shard            Gather is a cast, without communication and on the compute lane, once per step; where
//                       units read parameters in place, nothing but a place in the order. Each Backward adds
//                       into the unit's whole fp32 gradient; one Reduce (an all-reduce in place, of the last
//                       micro-batch) follows the last Backward. Update reads that buffer: there is no other
//                       gradient storage.
//   optim               Gather once per step. Gradients as no_shard; the one Reduce is a reduce-scatter into
//                       the gradient shard.
//   optim_grads         Gather once per step. Each Backward sets the reduce buffer, in grad_comm precision;
//                       each is followed by a Reduce, the first micro-batch's setting the shard, later ones
//                       adding.
//   optim_grads_params  as optim_grads, and each pass gathers a unit and releases it after; a unit that the
//                       next pass needs too stays (the first one from backward to the next micro-batch's
//                       forward). A backward that needs none of its parameters, an embedding's, gathers none.
//                       With keep_gathered: as optim_grads, and a Release after each unit's last use.
// A gather starts as soon as its bytes are free and no more than prefetch_bytes would wait ahead of compute
// (no such bound where buckets stay for the step); two Reduces may be in flight beside the next Backward.
// A wire narrower than fp32 needs a kWire buffer, live during its Reduce alone.
//
// With replicas, the last micro-batch's Reduce b is followed by ReduceOuter b: an all-reduce of the
// gradient shard, or, where replicas shard the optimizer, a reduce-scatter of it in place, into the
// own main piece. In the latter case each step begins with Publish b of every bucket, in forward order, into
// a kReplica buffer whose bytes are its own for the whole step and which Gather reads.
//
// A borrowing unit (tied embeddings) uses the lender's gathered buckets beside its own in Forward and
// Backward, so they must be there and live. Its Backward comes before the lender's and treats the lender's
// reduce buffers as its own ones; the lender's own Backward then always adds. Buckets that are not trainable
// are gathered and released like others, and have no reduce buffer, Reduce or Update.
//
// Steps follow each other without a barrier: `after_previous` names instructions of the step before. The
// first Gather (or Publish) of a bucket waits so for its Update, the first write of a buffer for whatever of
// the step before may still use its bytes, and a step's first Forward for nothing else.
//
// Where the job writes checkpoints, each step ends with a Snapshot of every bucket, in the order of their
// Updates and then those that have none. What it copies it needs until the next step's Update of the bucket,
// which waits for it; nothing else does, so the copies run beside the next step. It is there in every step,
// so that all steps are one program, and does nothing in those that save nothing.
//
// Where the optimizer's state lies in host memory, it takes turns on the device: Fetch, Update and Offload of
// each bucket, in forward order, with as many under way as StagedRoom holds. They run beside the next step,
// whose gathers wait for the Updates of their own buckets alone; and a step's first Fetch for the last
// Offload of the step before. A Snapshot copies from the device too, before others take the bytes.
//
// Where layers keep in host memory what their backward needs (OffloadsActivations), OffloadKept follows such
// a Forward, and as soon as kStagedLayers are on their way the next one waits for the oldest, whose DropKept
// comes first. Those on their way when the forward ends are dropped before the first Backward. From there on
// kStagedLayers come back ahead of their Backward, each as soon as the one before has been used. What comes
// gets bytes that compute may have used before: a FetchKept waits for all of compute that is listed before
// it.
//
// Where the model is cut into stages (the pipeline axis), a program is one stage's: its runs of units, and
// what it sends to its neighbours and receives from them; behind the last stage the first has its next run.
// Stages run 1F1B (schedule.h): as many forwards as let the last stage begin, then one back for each forward.
// A Receive is listed before the turn through a run that needs it. What crosses has kStageTransferSlots of
// each kind, so that it may be under way while the turn before runs: a Receive waits until what came so many
// Receives before has been taken, and a pass that makes something to send until what was sent so many before
// has left. Norm waits for the last Send, and the first Receive of a step for the Norm of the step before, so
// what is on its way is of one step. That all stages' programs fit together is verify_stages.h.
//
// With zero-bubble (ZB-H1) a Backward puts gradients of matrices off, and BackwardWeights of the oldest
// micro-batch follows as soon as stage s has put off more than s: behind the last forwards, where a stage
// waits for gradients, it has these to do. Gradients are whole there, so both write one buffer, which is
// reduced behind the last of either.
//
// What two stages have (tied embeddings: the first and the last) is reduced in each, and then summed: the
// borrower's stage sends its gradient, the lender's adds it to its own and sends the sum back. Both update by
// the same numbers, so what they have stays the same.
//
// Evaluation is a program of its own over the same units and bytes: one pass of Gather, Forward, Release and
// then Loss. It starts when nothing of a training step is left.
//
// A bucket has one address for the whole job: autograd finds saved parameters by address, so forward and
// backward must see them at the same place, and the evaluation must see them where units were bound.
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
  int unit = -1;         // -1 for Norm and Loss.
  int bucket = -1;       // Publish, Gather, Reduce, ReduceOuter, Update, Snapshot.
  int micro_batch = -1;  // Forward, Backward, ForwardBackward, Reduce, and what crosses between stages.
  LaneId lane = LaneId::kCompute;
  Group group = Group::kSelf;  // Over which it communicates, and as what.
  Role role = Role::kGather;
  bool accumulate = false;                 // Backward(s), Reduce: add to what is there instead of setting it.
  Recompute recompute = Recompute::kNone;  // Forward, Backward: what is kept between the two.
  bool puts_off = false;                   // Backward: BackwardWeights follows.
  std::vector<int> after;                  // Earlier instructions on other lanes; a lane itself is in order.
  std::vector<int> after_previous;         // Instructions of the previous step on other lanes.
  std::vector<BufferUse> uses;
};

enum class BufferKind {
  kGathered,  // A bucket's parameters, in BucketTypes::gathered; of no bytes where they are read in place.
  kReduce,    // A bucket's whole gradient, in BucketTypes::wire.
  kWire,      // Of a Reduce in less than fp32: its sums (SumBytes), then what it receives into, which is as
              // large as the kReduce buffer.
  kReplica,   // The shard of a bucket, in BucketTypes::gathered, where main pieces are smaller than shards.
  kState,     // Bucket::offloaded, from its Fetch to its Offload.
};
constexpr int kBufferKinds = 5;
const char* NameOf(BufferKind kind);

// Bytes of the arena. Two buffers may share bytes when their lifetimes do not meet.
struct Buffer {
  BufferKind kind = BufferKind::kGathered;
  int bucket = 0;
  int64_t bytes = 0;
  int64_t offset = 0;  // In the arena; a multiple of 256.
  // Instruction indices, both included. A gathered bucket of a sharded unit lives in several intervals.
  struct Interval {
    int born = 0;
    int dies = 0;
  };
  std::vector<Interval> live;
};

// Hidden states that a stage has room for beside what units keep: that have come and wait for their turn,
// that wait to be sent, and gradients that do; of each so many.
constexpr int kStageTransferSlots = 2;

// Bytes on the device for optimizer's state that is on its way there, there, or on its way back: the most
// that two buckets of it, one behind the other, have, so that each can come while the one before it goes.
int64_t StagedRoom(const Layout& layout);

// Layers of which what lies in host memory is on its way there, or back and not used yet.
constexpr size_t kStagedLayers = 2;

enum class ProgramKind { kTraining, kEvaluation };

struct Program {
  ProgramKind kind = ProgramKind::kTraining;
  std::vector<Instruction> instructions;
  std::vector<Buffer> buffers;
  int64_t arena_bytes = 0;
  int64_t state_bytes = 0;  // Of these, the last: where kState buffers lie.
  // Lower bound for arena_bytes: the most that is occupied at once. A reduce buffer is occupied until compute
  // has waited for its Reduce, which is later than its last use in the list.
  int64_t live_peak_bytes = 0;
  uint64_t hash = 0;  // Of Fingerprint(): equal on all ranks.
};

Program CompileProgram(const Spec& spec, const ModelFacts& model, const Layout& layout);

// Uses the training program's buffers where they are.
Program CompileEvaluation(const Spec& spec, const ModelFacts& model, const Layout& layout,
                          const Program& training);

// What the fp32 sums of a Reduce from a narrower wire take at the head of its kWire buffer, a multiple of
// 256: 0 where they go to the gradient shard at once, as a GPU's kernel has them always.
int64_t SumBytes(const Spec& spec, const Bucket& bucket);

// One instruction as people read it: "#12 Backward layer.3 mb 0 on compute after #9".
std::string Describe(const Program& program, const Layout& layout, int instruction);

}  // namespace fsdpd
