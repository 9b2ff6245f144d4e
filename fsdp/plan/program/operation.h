// Table of the operations of a step: name, operand (step, unit or bucket), lane and group. The bytes that an
// operation sends are in traffic.h, its implementation in fsdp/engine/operations/operations.h, its predicted
// time in fsdp/plan/predict/cost.h.
#pragma once

#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

enum class Op {
  kGatherReplica,
  kGather,
  kForward,
  kRelease,
  kBackward,
  kForwardBackward,
  kReduce,
  kReduceOuter,
  kNorm,
  kUpdate,
  kSnapshot,
  kLoss,
  kSend,
  kReceive,
  kSendGrad,
  kReceiveGrad,
  kSendTiedGrad,
  kReceiveTiedGrad,
  kBackwardWeights,
  kFetch,
  kOffload,
  kOffloadActivations,
  kDropActivations,
  kFetchActivations,
};
constexpr int kOps = 24;

enum class LaneId { kCompute, kGather, kReduce, kOuter, kCopy, kSend, kReceive, kFetch, kUpdate };
constexpr int kLanes = 9;

// Number of fp32 values that Norm and Loss all-reduce over all ranks: squared gradient norm, loss, target
// count, checkpoint requests, expert overflow, and the routing statistics. Norm also sums Layout::choices.
constexpr int kStepAllReduceSize = 5 + kRoutingSums;

enum class ActsOn { kStep, kUnit, kBucket };

struct Operation {
  Op op;
  const char* name;
  ActsOn acts_on;
  bool of_micro_batch;
  LaneId lane;  // Default lane; see LaneOf.
  Role role;
  // Member of the bucket's groups; null: use `group`.
  Group BucketGroups::*bucket_group;
  Group group;
};
const Operation& OperationOf(Op op);

// The lane of an operation: that of its table row, with two exceptions. An operation whose bucket group is
// kSelf needs no communication and runs on compute; an Update of offloaded state runs on its own lane.
// `bucket` may be null if the operation does not act on one, here and below.
LaneId LaneOf(Op op, const Bucket* bucket);

// The group that the operation communicates over.
Group GroupOf(Op op, const Bucket* bucket);

// Whether a training step lists the operation after Norm: it changes parameters, copies the result, or
// fetches state for such a change. All other operations precede Norm, or are Norm.
bool FollowsNorm(Op op);

// Whether the operation is a pure backward of a unit, which may not need what the forward reads.
bool IsBackwardOnly(Op op);

// Whether the operation produces the gradient of a unit's input, which earlier units wait for.
bool GivesInputGrad(Op op);

const char* NameOf(Op op);
const char* NameOf(LaneId lane);

// Role of the operation in point-to-point communication between pipeline stages. It is not a collective: its
// counterpart is in another stage's program.
enum class StageTransfer { kNone, kSends, kReceives };
StageTransfer StageTransferOf(Op op);
// Direction of a stage send/receive: the peer is the next stage (1) or the previous one (-1). Not for
// tied-embedding replicas, whose stages are the first and the last.
int TransferDirection(Op op);
// The operation that the peer runs.
Op CounterpartOf(Op op);

// For offloaded data: whether the operation fetches it to the device or writes it back.
enum class Staging { kNone, kFetches, kWritesBack };
Staging StagingOf(Op op);

// Whether the operation only holds a position in its lane and does no work.
bool IsPlaceholder(Op op);

// Whether the lane runs operations that wait for other ranks.
bool RunsExchanges(LaneId lane);

// Whether the lane only copies to or from host memory. Such copies count neither as compute nor as
// communication, nor toward step time: their cost shows in the operations that wait for them.
bool IsBackgroundLane(LaneId lane);

}  // namespace fsdpd
