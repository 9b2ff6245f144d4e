#include <algorithm>
#include <initializer_list>

#include "base/check.h"
#include "fsdp/plan/verify/verify_checks.h"

namespace fsdpd {
namespace {

bool IsOneOf(Op op, std::initializer_list<Op> ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

LaneId LaneFor(const VerifyCase& verified, const Instruction& at) {
  if (at.op == Op::kGather) return verified.spec.shards_optimizer() ? LaneId::kGather : LaneId::kCompute;
  if (at.op == Op::kUpdate) return verified.OffloadsState(at.bucket) ? LaneId::kUpdate : LaneId::kCompute;
  if (IsOneOf(at.op, {Op::kReduce, Op::kNorm, Op::kLoss})) return LaneId::kReduce;
  if (IsOneOf(at.op, {Op::kGatherReplica, Op::kReduceOuter})) return LaneId::kOuter;
  if (IsOneOf(at.op, {Op::kSnapshot, Op::kOffload, Op::kOffloadActivations})) return LaneId::kCopy;
  if (IsOneOf(at.op, {Op::kFetch, Op::kFetchActivations})) return LaneId::kFetch;
  if (IsOneOf(at.op, {Op::kSend, Op::kSendGrad, Op::kSendTiedGrad})) return LaneId::kSend;
  if (IsOneOf(at.op, {Op::kReceive, Op::kReceiveGrad, Op::kReceiveTiedGrad})) return LaneId::kReceive;
  return LaneId::kCompute;
}

// The group that reduces a bucket's gradient. With tensor parallelism: the ranks with the same shard, or for
// parameters that are not partitioned, the whole replica. With expert parallelism: the ranks with the same
// experts.
Group SummersOf(const VerifyCase& verified, int bucket) {
  if (bucket < 0 || bucket >= verified.buckets()) return Group::kShard;
  const std::vector<ParamSlot>& params = verified.layout.buckets[bucket].params;
  const auto cut_over = [&params](Group group) {
    return std::any_of(params.begin(), params.end(),
                       [group](const ParamSlot& p) { return p.partition.shard_group() == group; });
  };
  if (cut_over(Group::kExpert)) return Group::kExpertShard;
  const bool shares = verified.spec.mesh.size(Axis::kTensor) > 1;
  return shares && !cut_over(Group::kTensor) ? Group::kReplica : Group::kShard;
}

// The group of a gather: ranks with the other shards; kSelf if the bucket is not sharded.
Group GroupFor(const VerifyCase& verified, const Instruction& at) {
  if (at.op == Op::kReduce || (at.op == Op::kGather && verified.spec.shards_optimizer()))
    return SummersOf(verified, at.bucket);
  if (IsOneOf(at.op, {Op::kGatherReplica, Op::kReduceOuter})) return Group::kReplicate;
  if (IsOneOf(at.op, {Op::kNorm, Op::kLoss})) return Group::kWorld;
  if (at.lane == LaneId::kSend || at.lane == LaneId::kReceive) return Group::kPipeline;
  return Group::kSelf;
}

// Each communication lane has its own communicators.
Role RoleFor(LaneId lane) {
  if (lane == LaneId::kReduce) return Role::kReduce;
  if (lane == LaneId::kSend || lane == LaneId::kReceive) return Role::kStage;
  return lane == LaneId::kOuter ? Role::kOuter : Role::kGather;
}

bool OfBucket(Op op) {
  return IsOneOf(op, {Op::kGatherReplica, Op::kGather, Op::kReduce, Op::kReduceOuter, Op::kUpdate,
                      Op::kSnapshot, Op::kSendTiedGrad, Op::kReceiveTiedGrad, Op::kFetch, Op::kOffload});
}

bool OfMicroBatch(Op op) {
  return IsOneOf(op, {Op::kSend, Op::kReceive, Op::kSendGrad, Op::kReceiveGrad, Op::kOffloadActivations,
                      Op::kDropActivations, Op::kFetchActivations, Op::kForward, Op::kBackward,
                      Op::kForwardBackward, Op::kBackwardWeights, Op::kReduce});
}

bool Belongs(const VerifyCase& verified, Op op) {
  if (verified.training()) return op != Op::kLoss;
  return IsOneOf(
      op, {Op::kGatherReplica, Op::kGather, Op::kForward, Op::kRelease, Op::kLoss, Op::kSend, Op::kReceive});
}

absl::Status CheckGroup(const VerifyCase& verified, int i) {
  const Instruction& at = verified.At(i);
  const Group group = GroupFor(verified, at);
  if (at.group != group)
    return RuleError(4, verified.Name(i), " runs over ", NameOf(at.group), " instead of ", NameOf(group));
  const Role role = RoleFor(at.lane);
  if (group == Group::kSelf || at.role == role) return absl::OkStatus();
  return RuleError(4, verified.Name(i), " uses the communicator for ", NameOf(at.role), " instead of ",
                   NameOf(role));
}

// A stage's units are those of its runs, concatenated.
absl::Status CheckRuns(const VerifyCase& verified) {
  int next = 0;
  for (int run = 0; run < verified.runs(); ++run) {
    if (verified.RunBegin(run) != next || verified.RunEnd(run) <= next)
      return RuleError(4, "run ", run, " of the stage has units ", verified.RunBegin(run), " to ",
                       verified.RunEnd(run), ", behind ", next);
    next = verified.RunEnd(run);
  }
  if (next == verified.units()) return absl::OkStatus();
  return RuleError(4, "the stage's runs have ", next, " units of ", verified.units());
}

// Replicated parameters are reduced over other ranks than partitioned ones.
absl::Status CheckSlices(const VerifyCase& verified) {
  for (int b = 0; b < verified.buckets(); ++b) {
    const std::vector<ParamSlot>& params = verified.layout.buckets[b].params;
    const auto alike = [&params](const ParamSlot& p) {
      return p.partition.shard_group() == params[0].partition.shard_group();
    };
    if (!std::all_of(params.begin(), params.end(), alike))
      return RuleError(4, "bucket ", b, " mixes partitioned and replicated parameters");
  }
  return absl::OkStatus();
}

// Rule 6: a selection bias has a choice count for each of its experts, and shares none with another bias.
absl::Status CheckChoices(const VerifyCase& verified) {
  std::vector<bool> taken(verified.layout.choices, false);
  for (int b = 0; b < verified.buckets(); ++b) {
    const Bucket& bucket = verified.layout.buckets[b];
    if (bucket.choices_begin < 0) continue;
    if (bucket.trainable || bucket.params.size() != 1)
      return RuleError(6, "bucket ", b, " has choice counts but is not a single selection bias");
    for (int64_t i = bucket.choices_begin; i < bucket.choices_begin + bucket.elements; ++i) {
      if (i >= verified.layout.choices || taken[i])
        return RuleError(6, "bucket ", b, " balances by choice ", i, " of ", verified.layout.choices,
                         ", which is out of range or already used");
      taken[i] = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckShape(const VerifyCase& verified) {
  FSDPD_RETURN_IF_ERROR(CheckRuns(verified));
  FSDPD_RETURN_IF_ERROR(CheckSlices(verified));
  FSDPD_RETURN_IF_ERROR(CheckChoices(verified));
  for (int i = 0; i < verified.count(); ++i) {
    const Instruction& at = verified.At(i);
    if (!Belongs(verified, at.op)) {
      return RuleError(8, verified.Name(i), " is not allowed in ",
                       verified.training() ? "training" : "evaluation");
    }
    const bool global = at.op == Op::kNorm || at.op == Op::kLoss;
    if (!global && (at.unit < 0 || at.unit >= verified.units()))
      return RuleError(4, verified.Name(i), " names unit ", at.unit, " of ", verified.units());
    if (OfBucket(at.op) && (at.bucket < 0 || at.bucket >= verified.buckets() ||
                            verified.layout.buckets[at.bucket].unit != at.unit))
      return RuleError(4, verified.Name(i), " names bucket ", at.bucket, ", which is not its unit's");
    if (OfMicroBatch(at.op) && (at.micro_batch < 0 || at.micro_batch >= verified.micro_batches())) {
      return RuleError(4, verified.Name(i), " names micro-batch ", at.micro_batch, " of ",
                       verified.micro_batches());
    }
    if (at.lane != LaneFor(verified, at))
      return RuleError(4, verified.Name(i), " belongs on the ", NameOf(LaneFor(verified, at)), " lane");
    FSDPD_RETURN_IF_ERROR(CheckGroup(verified, i));
  }
  return absl::OkStatus();
}

}  // namespace fsdpd
