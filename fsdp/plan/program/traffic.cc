#include "fsdp/plan/program/traffic.h"

namespace fsdpd {
namespace {

constexpr int64_t kSumBytes = 4;  // Replica reductions and the step all-reduce are fp32.

// Sharded gradients use a reduce-scatter, unsharded ones an all-reduce.
Pattern SumPattern(Group parts) {
  return parts == Group::kSelf ? Pattern::kAllReduce : Pattern::kReduceScatter;
}

v1::CommOp Named(Pattern pattern) {
  switch (pattern) {
    case Pattern::kNone:
      return v1::COMM_OP_UNSPECIFIED;
    case Pattern::kAllGather:
      return v1::COMM_OP_ALL_GATHER;
    case Pattern::kReduceScatter:
      return v1::COMM_OP_REDUCE_SCATTER;
    case Pattern::kAllReduce:
      return v1::COMM_OP_ALL_REDUCE;
    case Pattern::kSend:
    case Pattern::kReceive:
      return v1::COMM_OP_STAGE;
  }
  return v1::COMM_OP_UNSPECIFIED;
}

int64_t Received(Pattern pattern, int64_t buffer_bytes, int64_t ranks) {
  if (pattern == Pattern::kSend) return 0;
  if (pattern == Pattern::kReceive) return buffer_bytes;
  const int64_t once = buffer_bytes / ranks * (ranks - 1);
  return pattern == Pattern::kAllReduce ? 2 * once : once;
}

int64_t HiddenBytes(const Layout& layout) {
  return layout.stage.hidden_elements * BytesOf(layout.stage.hidden_type);
}

// Assumes that the group has more than one rank.
Traffic Of(const Layout& layout, const Instruction& instruction) {
  Traffic traffic;
  const auto set = [&traffic](Pattern pattern, int64_t bytes, v1::CommOp counted_as) {
    traffic.pattern = pattern;
    traffic.buffer_bytes = bytes;
    traffic.counted_as = counted_as;
  };
  const Bucket none;
  const Bucket& bucket = instruction.bucket < 0 ? none : layout.buckets[instruction.bucket];
  switch (instruction.op) {
    case Op::kGatherReplica:
      set(Pattern::kAllGather, bucket.replica_bytes(), v1::COMM_OP_OUTER_GATHER);
      break;
    case Op::kGather:
      set(Pattern::kAllGather, bucket.gathered_bytes(), v1::COMM_OP_ALL_GATHER);
      break;
    case Op::kReduce: {
      const Pattern pattern = SumPattern(bucket.groups.shard);
      set(pattern, bucket.grad_comm_bytes(), Named(pattern));
      break;
    }
    case Op::kReduceOuter:
      set(SumPattern(bucket.groups.pieces), bucket.shard_elements * kSumBytes, v1::COMM_OP_OUTER_REDUCE);
      break;
    case Op::kNorm:
      set(Pattern::kAllReduce, (kStepAllReduceSize + layout.choices) * kSumBytes, v1::COMM_OP_ALL_REDUCE);
      break;
    case Op::kLoss:
      set(Pattern::kAllReduce, kStepAllReduceSize * kSumBytes, v1::COMM_OP_ALL_REDUCE);
      break;
    case Op::kSend:
    case Op::kSendGrad:
      set(Pattern::kSend, HiddenBytes(layout), Named(Pattern::kSend));
      break;
    case Op::kReceive:
    case Op::kReceiveGrad:
      set(Pattern::kReceive, HiddenBytes(layout), Named(Pattern::kReceive));
      break;
    case Op::kSendTiedGrad:
      set(Pattern::kSend, bucket.main_elements * BytesOf(bucket.types.gradient), Named(Pattern::kSend));
      break;
    case Op::kReceiveTiedGrad:
      set(Pattern::kReceive, bucket.main_elements * BytesOf(bucket.types.gradient), Named(Pattern::kReceive));
      break;
    case Op::kForward:
    case Op::kRelease:
    case Op::kBackward:
    case Op::kBackwardWeights:
    case Op::kForwardBackward:
    case Op::kUpdate:
    case Op::kSnapshot:
    case Op::kFetch:
    case Op::kOffload:
    case Op::kOffloadActivations:
    case Op::kDropActivations:
    case Op::kFetchActivations:
      break;
  }
  return traffic;
}

}  // namespace

Traffic TrafficOf(const Mesh& mesh, const Layout& layout, const Instruction& instruction) {
  const int64_t ranks = mesh.SizeOf(instruction.group);
  if (ranks == 1) return {};
  Traffic traffic = Of(layout, instruction);
  if (!traffic.communicates()) return {};
  traffic.received_bytes = Received(traffic.pattern, traffic.buffer_bytes, ranks);
  return traffic;
}

int64_t ReceivedBytes(const Mesh& mesh, const UnitExchange& exchange, int64_t elements) {
  const Pattern pattern = exchange.what == Exchange::kAllReduce ? Pattern::kAllReduce : Pattern::kAllGather;
  return Received(pattern, elements * BytesOf(exchange.type), mesh.SizeOf(exchange.group));
}

}  // namespace fsdpd
