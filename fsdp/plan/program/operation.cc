#include "fsdp/plan/program/operation.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr LaneId kOnCompute = LaneId::kCompute;
constexpr Group kNoGroup = Group::kSelf;

constexpr Operation kOperations[] = {
    {Op::kGatherReplica, "Publish", ActsOn::kBucket, false, LaneId::kOuter, Role::kOuter,
     &BucketGroups::pieces, kNoGroup},
    {Op::kGather, "Gather", ActsOn::kBucket, false, LaneId::kGather, Role::kGather, &BucketGroups::shard,
     kNoGroup},
    {Op::kForward, "Forward", ActsOn::kUnit, true, kOnCompute, Role::kGather, nullptr, kNoGroup},
    {Op::kRelease, "Release", ActsOn::kUnit, false, kOnCompute, Role::kGather, nullptr, kNoGroup},
    {Op::kBackward, "Backward", ActsOn::kUnit, true, kOnCompute, Role::kGather, nullptr, kNoGroup},
    {Op::kForwardBackward, "ForwardBackward", ActsOn::kUnit, true, kOnCompute, Role::kGather, nullptr,
     kNoGroup},
    {Op::kReduce, "Reduce", ActsOn::kBucket, true, LaneId::kReduce, Role::kReduce, &BucketGroups::reduce,
     kNoGroup},
    {Op::kReduceOuter, "ReduceOuter", ActsOn::kBucket, false, LaneId::kOuter, Role::kOuter,
     &BucketGroups::replicate, kNoGroup},
    {Op::kNorm, "Norm", ActsOn::kStep, false, LaneId::kReduce, Role::kReduce, nullptr, Group::kWorld},
    {Op::kUpdate, "Update", ActsOn::kBucket, false, kOnCompute, Role::kGather, nullptr, kNoGroup},
    {Op::kSnapshot, "Snapshot", ActsOn::kBucket, false, LaneId::kCopy, Role::kGather, nullptr, kNoGroup},
    {Op::kLoss, "Loss", ActsOn::kStep, false, LaneId::kReduce, Role::kReduce, nullptr, Group::kWorld},
    {Op::kSend, "Send", ActsOn::kUnit, true, LaneId::kSend, Role::kStage, nullptr, Group::kPipeline},
    {Op::kReceive, "Receive", ActsOn::kUnit, true, LaneId::kReceive, Role::kStage, nullptr, Group::kPipeline},
    {Op::kSendGrad, "SendGrad", ActsOn::kUnit, true, LaneId::kSend, Role::kStage, nullptr, Group::kPipeline},
    {Op::kReceiveGrad, "ReceiveGrad", ActsOn::kUnit, true, LaneId::kReceive, Role::kStage, nullptr,
     Group::kPipeline},
    {Op::kSendTiedGrad, "SendTwin", ActsOn::kBucket, false, LaneId::kSend, Role::kStage, nullptr,
     Group::kPipeline},
    {Op::kReceiveTiedGrad, "ReceiveTwin", ActsOn::kBucket, false, LaneId::kReceive, Role::kStage, nullptr,
     Group::kPipeline},
    {Op::kBackwardWeights, "BackwardWeights", ActsOn::kUnit, true, kOnCompute, Role::kGather, nullptr,
     kNoGroup},
    {Op::kFetch, "Fetch", ActsOn::kBucket, false, LaneId::kFetch, Role::kGather, nullptr, kNoGroup},
    {Op::kOffload, "Offload", ActsOn::kBucket, false, LaneId::kCopy, Role::kGather, nullptr, kNoGroup},
    {Op::kOffloadActivations, "OffloadKept", ActsOn::kUnit, true, LaneId::kCopy, Role::kGather, nullptr,
     kNoGroup},
    {Op::kDropActivations, "DropKept", ActsOn::kUnit, true, kOnCompute, Role::kGather, nullptr, kNoGroup},
    {Op::kFetchActivations, "FetchKept", ActsOn::kUnit, true, LaneId::kFetch, Role::kGather, nullptr,
     kNoGroup},
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
    const bool exchanges = operation.bucket_group != nullptr || operation.group != kNoGroup;
    return operation.lane == lane && exchanges;
  });
}

bool IsBackgroundLane(LaneId lane) {
  return lane == LaneId::kCopy || lane == LaneId::kFetch || lane == LaneId::kUpdate;
}

const char* NameOf(LaneId lane) {
  switch (lane) {
    case LaneId::kCompute:
      return "compute";
    case LaneId::kGather:
      return "gather";
    case LaneId::kReduce:
      return "reduce";
    case LaneId::kOuter:
      return "outer";
    case LaneId::kCopy:
      return "copy";
    case LaneId::kSend:
      return "send";
    case LaneId::kReceive:
      return "receive";
    case LaneId::kFetch:
      return "fetch";
    case LaneId::kUpdate:
      return "update";
  }
  return "?";
}

}  // namespace fsdpd
