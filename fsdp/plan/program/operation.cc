#include "fsdp/plan/program/operation.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace fsdpd {
namespace {

// Short names for the table.
using L = LaneId;
using R = Role;
constexpr ActsOn kStep = ActsOn::kStep, kUnit = ActsOn::kUnit, kBucket = ActsOn::kBucket;

constexpr Operation kOperations[] = {
    {Op::kGatherReplica, "Publish", kBucket, false, L::kOuter, R::kOuter, &BucketGroups::pieces,
     Group::kSelf},
    {Op::kGather, "Gather", kBucket, false, L::kGather, R::kGather, &BucketGroups::shard, Group::kSelf},
    {Op::kForward, "Forward", kUnit, true, L::kCompute, R::kGather, nullptr, Group::kSelf},
    {Op::kRelease, "Release", kUnit, false, L::kCompute, R::kGather, nullptr, Group::kSelf},
    {Op::kBackward, "Backward", kUnit, true, L::kCompute, R::kGather, nullptr, Group::kSelf},
    {Op::kForwardBackward, "ForwardBackward", kUnit, true, L::kCompute, R::kGather, nullptr, Group::kSelf},
    {Op::kReduce, "Reduce", kBucket, true, L::kReduce, R::kReduce, &BucketGroups::reduce, Group::kSelf},
    {Op::kReduceOuter, "ReduceOuter", kBucket, false, L::kOuter, R::kOuter, &BucketGroups::replicate,
     Group::kSelf},
    {Op::kNorm, "Norm", kStep, false, L::kReduce, R::kReduce, nullptr, Group::kWorld},
    {Op::kUpdate, "Update", kBucket, false, L::kCompute, R::kGather, nullptr, Group::kSelf},
    {Op::kSnapshot, "Snapshot", kBucket, false, L::kCopy, R::kGather, nullptr, Group::kSelf},
    {Op::kLoss, "Loss", kStep, false, L::kReduce, R::kReduce, nullptr, Group::kWorld},
    {Op::kSend, "Send", kUnit, true, L::kSend, R::kStage, nullptr, Group::kPipeline},
    {Op::kReceive, "Receive", kUnit, true, L::kReceive, R::kStage, nullptr, Group::kPipeline},
    {Op::kSendGrad, "SendGrad", kUnit, true, L::kSend, R::kStage, nullptr, Group::kPipeline},
    {Op::kReceiveGrad, "ReceiveGrad", kUnit, true, L::kReceive, R::kStage, nullptr, Group::kPipeline},
    {Op::kSendTiedGrad, "SendTwin", kBucket, false, L::kSend, R::kStage, nullptr, Group::kPipeline},
    {Op::kReceiveTiedGrad, "ReceiveTwin", kBucket, false, L::kReceive, R::kStage, nullptr, Group::kPipeline},
    {Op::kBackwardWeights, "BackwardWeights", kUnit, true, L::kCompute, R::kGather, nullptr, Group::kSelf},
    {Op::kFetch, "Fetch", kBucket, false, L::kFetch, R::kGather, nullptr, Group::kSelf},
    {Op::kOffload, "Offload", kBucket, false, L::kCopy, R::kGather, nullptr, Group::kSelf},
    {Op::kOffloadActivations, "OffloadKept", kUnit, true, L::kCopy, R::kGather, nullptr, Group::kSelf},
    {Op::kDropActivations, "DropKept", kUnit, true, L::kCompute, R::kGather, nullptr, Group::kSelf},
    {Op::kFetchActivations, "FetchKept", kUnit, true, L::kFetch, R::kGather, nullptr, Group::kSelf},
};

// Indexed by Op.
constexpr bool InOrder() {
  for (int i = 0; i < kOps; ++i) {
    if (kOperations[i].op != static_cast<Op>(i)) return false;
  }
  return true;
}
static_assert(std::size(kOperations) == kOps && InOrder());

}  // namespace

const Operation& OperationOf(Op op) {
  const auto index = static_cast<size_t>(op);
  FSDPD_CHECK(index < kOps);
  return kOperations[index];
}

LaneId LaneOf(Op op, const Bucket* bucket) {
  const Operation& operation = OperationOf(op);
  if (operation.bucket_group != nullptr && GroupOf(op, bucket) == Group::kSelf) return LaneId::kCompute;
  if (op == Op::kUpdate && bucket != nullptr && !bucket->offloaded.empty()) return LaneId::kUpdate;
  return operation.lane;
}

bool FollowsNorm(Op op) {
  return op == Op::kUpdate || op == Op::kSnapshot || op == Op::kFetch || op == Op::kOffload;
}

bool IsBackwardOnly(Op op) { return op == Op::kBackward || op == Op::kBackwardWeights; }

bool GivesInputGrad(Op op) { return op == Op::kBackward || op == Op::kForwardBackward; }

StageTransfer StageTransferOf(Op op) {
  if (op == Op::kSend || op == Op::kSendGrad || op == Op::kSendTiedGrad) return StageTransfer::kSends;
  const bool receives = op == Op::kReceive || op == Op::kReceiveGrad || op == Op::kReceiveTiedGrad;
  return receives ? StageTransfer::kReceives : StageTransfer::kNone;
}

int TransferDirection(Op op) {
  FSDPD_CHECK(StageTransferOf(op) != StageTransfer::kNone && OperationOf(op).of_micro_batch);
  return op == Op::kSend || op == Op::kReceiveGrad ? 1 : -1;
}

Op CounterpartOf(Op op) {
  FSDPD_CHECK(StageTransferOf(op) != StageTransfer::kNone);
  if (op == Op::kSend) return Op::kReceive;
  if (op == Op::kReceive) return Op::kSend;
  if (op == Op::kSendTiedGrad) return Op::kReceiveTiedGrad;
  if (op == Op::kReceiveTiedGrad) return Op::kSendTiedGrad;
  return op == Op::kSendGrad ? Op::kReceiveGrad : Op::kSendGrad;
}

Staging StagingOf(Op op) {
  if (op == Op::kFetch || op == Op::kFetchActivations) return Staging::kFetches;
  return op == Op::kOffload || op == Op::kOffloadActivations ? Staging::kWritesBack : Staging::kNone;
}

bool IsPlaceholder(Op op) { return op == Op::kRelease || op == Op::kDropActivations; }

Group GroupOf(Op op, const Bucket* bucket) {
  const Operation& operation = OperationOf(op);
  if (operation.bucket_group == nullptr) return operation.group;
  FSDPD_CHECK(bucket != nullptr);
  return bucket->groups.*operation.bucket_group;
}

const char* NameOf(Op op) { return OperationOf(op).name; }

bool RunsExchanges(LaneId lane) {
  return std::any_of(std::begin(kOperations), std::end(kOperations), [lane](const Operation& operation) {
    const bool exchanges = operation.bucket_group != nullptr || operation.group != Group::kSelf;
    return operation.lane == lane && exchanges;
  });
}

bool IsBackgroundLane(LaneId lane) {
  return lane == LaneId::kCopy || lane == LaneId::kFetch || lane == LaneId::kUpdate;
}

const char* NameOf(LaneId lane) {
  constexpr const char* kNames[kLanes] = {"compute", "gather",  "reduce", "outer", "copy",
                                          "send",    "receive", "fetch",  "update"};
  return kNames[static_cast<size_t>(lane)];
}

}  // namespace fsdpd
