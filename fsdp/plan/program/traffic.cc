#include "fsdp/plan/program/traffic.h"

namespace fsdpd {
namespace {

constexpr int64_t kSumBytes = 4;  // Replica reductions and the step all-reduce are fp32.

// Sharded gradients use a reduce-scatter, unsharded ones an all-reduce.
Pattern SumPattern(Group parts) {
  return parts == Group::kSelf ? Pattern::kAllReduce : Pattern::kReduceScatter;
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
  const Bucket none;
  const Bucket& bucket = instruction.bucket < 0 ? none : layout.buckets[instruction.bucket];
  const int64_t tied_bytes = bucket.main_elements * BytesOf(bucket.types.gradient);
  switch (instruction.op) {
    case Op::kGatherReplica:
      return {Pattern::kAllGather, bucket.replica_bytes(), 0, v1::COMM_OP_OUTER_GATHER};
    case Op::kGather:
      return {Pattern::kAllGather, bucket.wire_bytes(), 0, v1::COMM_OP_ALL_GATHER};
    case Op::kReduce: {
      const Pattern pattern = SumPattern(bucket.groups.shard);
      return {pattern, bucket.grad_comm_bytes(), 0,
              pattern == Pattern::kAllReduce ? v1::COMM_OP_ALL_REDUCE : v1::COMM_OP_REDUCE_SCATTER};
    }
    case Op::kReduceOuter:
      return {SumPattern(bucket.groups.pieces), bucket.shard_elements * kSumBytes, 0,
              v1::COMM_OP_OUTER_REDUCE};
    case Op::kNorm:
      return {Pattern::kAllReduce, (kStepAllReduceSize + layout.choices) * kSumBytes, 0,
              v1::COMM_OP_ALL_REDUCE};
    case Op::kLoss:
      return {Pattern::kAllReduce, kStepAllReduceSize * kSumBytes, 0, v1::COMM_OP_ALL_REDUCE};
    case Op::kSend:
    case Op::kSendGrad:
      return {Pattern::kSend, HiddenBytes(layout), 0, v1::COMM_OP_STAGE};
    case Op::kReceive:
    case Op::kReceiveGrad:
      return {Pattern::kReceive, HiddenBytes(layout), 0, v1::COMM_OP_STAGE};
    case Op::kSendTiedGrad:
      return {Pattern::kSend, tied_bytes, 0, v1::COMM_OP_STAGE};
    case Op::kReceiveTiedGrad:
      return {Pattern::kReceive, tied_bytes, 0, v1::COMM_OP_STAGE};
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
  return {};
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
