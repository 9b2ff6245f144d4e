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
};
constexpr int kOps = 19;

enum class LaneId { kCompute, kGather, kReduce, kOuter, kCopy, kSend, kReceive };
constexpr int kLanes = 7;

// What Norm and Loss sum over all ranks, in fp32: squares of the gradient, loss, targets that count, ranks
// that ask for a checkpoint, and what units tell of their routers. Norm also sums Layout::choices.
constexpr int kStepSums = 4 + kRoutingSums;

enum class ActsOn { kStep, kUnit, kBucket };

struct Operation {
  Op op;
  const char* name;
  ActsOn acts_on;
  bool of_micro_batch;
  // Where it runs; over a group of its bucket that is one rank by nature (kSelf) it runs on compute.
  LaneId lane;
  Role role;
  // Of the bucket, or null: `group`.
  Group BucketGroups::*bucket_group;
  Group group;
};
const Operation& OperationOf(Op op);

// Over which group the operation communicates; `bucket` may be null where it does not act on one.
Group GroupOf(Op op, const Bucket* bucket);

// Of a training step, whether it comes after the norm: it changes parameters by the step's gradients, or
// copies what came of that. All others come before it or are the norm.
bool FollowsNorm(Op op);

// Whether it gives the gradient of a unit's input, and so a backward is done as far as others wait for it.
bool GivesInputGrad(Op op);

const char* NameOf(Op op);
const char* NameOf(LaneId lane);

// How the operation takes part in what crosses from one stage to a neighbour: by itself it is no collective,
// and each has its counterpart in another program.
enum class Crossing { kNone, kSends, kReceives };
Crossing CrossingOf(Op op);
// To the next stage (1) or the one before (-1), or from there; not of twins, which go between the two that
// have them.
int CrossesTo(Op op);
// What the neighbour runs for it.
Op CounterpartOf(Op op);

// Whether operations that wait for other ranks run there.
bool RunsExchanges(LaneId lane);

}  // namespace fsdpd
