// The operations that a step is made of, as one table: what each is called, what it acts on, on which lane it
// runs and over which group of ranks. What it moves is traffic.h, what it does fsdp/engine/operations.h, how
// long it takes fsdp/plan/predict/cost.h.
#pragma once

#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

enum class Op {
  kPublish,
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
  kSendTwin,
  kReceiveTwin,
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

// What Norm and Loss sum over all ranks, in fp32: squares of the gradient, loss, targets that count, ranks
// that ask for a checkpoint, rows that experts had no room for, and what units tell of their routers. Norm
// also sums Layout::choices.
constexpr int kStepAllReduceSize = 5 + kRoutingSums;

enum class ActsOn { kStep, kUnit, kBucket };

struct Operation {
  Op op;
  const char* name;
  ActsOn acts_on;
  bool of_micro_batch;
  LaneId lane;  // Where it runs, as a rule: LaneOf.
  Role role;
  // Of the bucket, or null: `group`.
  Group BucketGroups::*bucket_group;
  Group group;
};
const Operation& OperationOf(Op op);

// Where it runs: on the row's lane, but on compute what is one rank's by nature (a group of its bucket that
// is kSelf), and on a lane of its own an Update that waits for what lies in host memory. `bucket` may be null
// where it does not act on one, as below.
LaneId LaneOf(Op op, const Bucket* bucket);

// Over which group the operation communicates.
Group GroupOf(Op op, const Bucket* bucket);

// Of a training step, whether it is listed after the norm: it changes parameters by the step's gradients,
// copies what came of that, or brings what the next such change needs. All others come before it or are the
// norm.
bool FollowsNorm(Op op);

// Whether, of a unit's passes, it goes back alone: what a forward reads it may not need.
bool GoesBackAlone(Op op);

// Whether it gives the gradient of a unit's input, and so a backward is done as far as others wait for it.
bool GivesInputGrad(Op op);

const char* NameOf(Op op);
const char* NameOf(LaneId lane);

// How the operation takes part in what crosses from one stage to a neighbour: by itself it is no collective,
// and each has its counterpart in another program.
enum class StageTransfer { kNone, kSends, kReceives };
StageTransfer StageTransferOf(Op op);
// To the next stage (1) or the one before (-1), or from there; not of twins, which go between the two that
// have them.
int CrossesTo(Op op);
// What the neighbour runs for it.
Op CounterpartOf(Op op);

// What lies in host memory: whether the operation brings it to the device, or puts it there.
enum class Staging { kNone, kBrings, kPutsBack };
Staging StagingOf(Op op);

// Whether it is a place in the order of its lane alone, and does no work.
bool IsPlace(Op op);

// Whether operations that wait for other ranks run there.
bool RunsExchanges(LaneId lane);

// Whether what runs there, to host memory and back, is neither computing nor communication, and is no part of
// a step's time: who waits for it shows how long it takes.
bool RunsBesideSteps(LaneId lane);

}  // namespace fsdpd
