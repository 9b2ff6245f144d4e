#include "fsdp/plan/predict/cost.h"

#include <algorithm>

#include "fsdp/plan/memory/host_memory.h"
#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/program/traffic.h"

namespace fsdpd {
namespace {

// Attention's backward has five products, its forward two.
constexpr double kAttentionBackwardWork = 2.5;

// Measured on one H200 with 8192 tokens: 277 of 496 TFLOP/s.
constexpr double kFlashBackwardSlowdown = 1.79;

// Bandwidth between GPU and pinned host memory per direction, with both directions busy: PCIe 5 x16 copies
// reach about this much of 63 GB/s. On CPU, a copy reads and writes memory.
constexpr double kHostBytesPerSecond = 50e9;

// Kernels of a Norm, nearly all on single numbers: the skip decision, the divisor, the learning rate,
// reporting.
constexpr int kNormKernels = 35;

double D(int64_t value) { return static_cast<double>(value); }

double HostCopySeconds(const Spec& spec, const DeviceProfile& profile, int64_t bytes) {
  const bool cuda = spec.device == DeviceKind::kCuda;
  return D(bytes) / (cuda ? kHostBytesPerSecond : profile.memory_bytes_per_second / 2);
}

// Trainable part of the parameters that the unit reads.
double TrainableShare(const ModelFacts& model, int unit) {
  int64_t all = 0, trainable = 0;
  for (const int u : {unit, model.units[unit].borrows}) {
    if (u < 0) continue;
    for (const ParamFacts& param : model.units[u].params) {
      all += param.elements();
      if (param.trainable) trainable += param.elements();
    }
  }
  return all == 0 ? 0 : D(trainable) / D(all);
}

class Costs {
 public:
  Costs(const Spec& spec, const ModelFacts& model, const Layout& layout, const DeviceProfile& profile,
        Placement placement)
      : spec_(spec),
        model_(model),
        layout_(layout),
        profile_(profile),
        ranks_per_node_(placement.ranks_per_node) {}

  double Of(const Instruction& i) const {
    switch (i.op) {
      case Op::kGatherReplica:
        return Cast(BucketOf(i), BucketOf(i).main_elements, BucketOf(i).types.replica()) +
               Transfer(i, profile_.outer_gather_bytes_per_second);
      case Op::kGather:
        return Gather(i);
      case Op::kForward:
        return ForwardAndExchange(i);
      case Op::kBackward:
        return Backward(i);
      case Op::kBackwardWeights:
        return DeferredPasses(i.unit);
      case Op::kForwardBackward:
        return ForwardAndExchange(i) + Backward(i);
      case Op::kReduce:
        return Reduce(i);
      case Op::kReduceOuter:
        return Transfer(i, profile_.outer_reduce_bytes_per_second);
      case Op::kNorm:
        return AtLeast(kNormKernels, Memory(NormBytes())) + SmallCollective(i);
      case Op::kUpdate:
        return AtLeast(/*kernels=*/1, Memory(UpdateBytes(BucketOf(i))));
      case Op::kFetch:
      case Op::kOffload:
        return HostCopySeconds(spec_, profile_, BucketOf(i).offloaded_bytes());
      case Op::kOffloadActivations:
      case Op::kFetchActivations:
        return ActivationCopy(i.unit);
      case Op::kRelease:
      case Op::kSnapshot:
      case Op::kDropActivations:
        return 0;
      case Op::kLoss:
        return SmallCollective(i);
      case Op::kSend:
      case Op::kSendGrad:
      case Op::kReceive:
      case Op::kReceiveGrad:
      case Op::kSendTiedGrad:
      case Op::kReceiveTiedGrad:
        return StageTransfer(i);
    }
    return 0;
  }

  // Exchanges of a unit's forward, and of its backward, which may repeat those of the forward.
  void AddExchanges(const Instruction& i, std::array<ExchangeCost, kGroups>* costs) const {
    const bool both = i.op == Op::kForwardBackward;
    const bool forward = both || i.op == Op::kForward, backward = both || i.op == Op::kBackward;
    if (!forward && !backward) return;
    const int64_t forwards = (forward ? 1 : 0) + (backward && i.recompute == Recompute::kFull ? 1 : 0);
    for (const UnitExchange& exchange : model_.units[i.unit].exchanges) {
      ExchangeCost& sum = (*costs)[static_cast<size_t>(exchange.group)];
      const auto add = [&sum](const ExchangeCost& cost, int64_t times) {
        sum.seconds += D(times) * cost.seconds;
        sum.received_bytes += times * cost.received_bytes;
        sum.count += times * cost.count;
      };
      add(Cost(exchange, exchange.forward_elements), forwards);
      add(Cost(exchange, exchange.backward_elements), backward ? 1 : 0);
      add(Cost(exchange, exchange.selective_elements), backward && Selects(i) ? 1 : 0);
    }
  }

  UnitSeconds OfUnit(int unit) const {
    UnitSeconds seconds;
    Instruction run{Op::kForward, unit};
    run.recompute = RecomputeOf(spec_, model_, unit);
    const auto of = [&](Op op) {
      run.op = op;
      return Of(run);
    };
    seconds.forward = of(Op::kForward);
    seconds.backward = of(Op::kBackward);
    seconds.deferred = DeferredPasses(unit);
    if (OffloadsActivations(spec_, model_, unit)) seconds.activation_copy = ActivationCopy(unit);
    for (const int bucket : layout_.units[unit].buckets) AddBucket(bucket, &seconds);
    return seconds;
  }

  double OfNorm() const { return Of(WithGroup({Op::kNorm})); }
  double OfStageTransfer() const { return layout_.stage.count == 1 ? 0 : Of(WithGroup({Op::kSend})); }

 private:
  Instruction WithGroup(Instruction i) const {
    i.group = GroupOf(i.op, i.bucket < 0 ? nullptr : &layout_.buckets[i.bucket]);
    return i;
  }

  double ActivationCopy(int unit) const {
    return HostCopySeconds(spec_, profile_, SavedBytesOf(spec_, model_, unit));
  }

  void AddBucket(int bucket, UnitSeconds* seconds) const {
    const Bucket& at = layout_.buckets[bucket];
    const auto of = [&](Op op, bool accumulate = false) {
      Instruction i = WithGroup({op, at.unit, bucket});
      i.accumulate = accumulate;
      return Of(i);
    };
    (at.groups.shard == Group::kSelf ? seconds->cast : seconds->gather) += of(Op::kGather);
    if (at.pieces > 1) seconds->gather_replica += of(Op::kGatherReplica);
    if (at.is_updated()) seconds->update += of(Op::kUpdate);
    seconds->fetch += of(Op::kFetch);
    if (!at.trainable) return;
    seconds->first_reduce += of(Op::kReduce);
    seconds->accumulating_reduce += of(Op::kReduce, /*accumulate=*/true);
    if (at.groups.replicate != Group::kSelf) seconds->reduce_outer += of(Op::kReduceOuter);
  }

  // A group that does not divide a node straddles a node boundary somewhere.
  bool OnOneNode(Group group) const {
    const int64_t span = spec_.mesh.SpanOf(group);
    return span <= ranks_per_node_ && ranks_per_node_ % span == 0;
  }
  const Bucket& BucketOf(const Instruction& i) const { return layout_.buckets[i.bucket]; }
  double Memory(int64_t bytes) const { return D(bytes) / profile_.memory_bytes_per_second; }

  // Time of `kernels` kernels with `seconds` of work; only the work if the count is unknown.
  double AtLeast(int kernels, double seconds) const {
    if (kernels == 0) return seconds;
    return std::max(seconds, profile_.instruction_seconds + kernels * profile_.kernel_seconds);
  }

  // Cast from storage to the gathered (or replica) type; with split fp32 the bf16 part is read.
  double Cast(const Bucket& bucket, int64_t elements, DType to) const {
    const BucketTypes& types = bucket.types;
    return Memory(elements * (BytesOf(types.split_fp32 ? types.replica() : types.main) + BytesOf(to)));
  }

  // A replica already has the gathered type and is only copied, unless the gather quantizes it.
  double FromReplica(const Bucket& bucket) const {
    return Memory(bucket.replica_bytes() + bucket.shard_elements * BytesOf(bucket.types.gathered));
  }

  // If it is sharded, the blocks are copied to where they are gathered; then all are converted.
  double FromNf4(const Bucket& bucket) const {
    const int64_t copied = bucket.shards > 1 ? 2 * bucket.main_bytes() : 0;
    return Memory(copied + bucket.wire_bytes() + bucket.bucket_elements * BytesOf(bucket.types.gathered));
  }

  double Transfer(const Instruction& i, double bytes_per_second, int collectives = 1) const {
    const Traffic traffic = TrafficOf(spec_.mesh, layout_, i);
    if (!traffic.communicates()) return 0;
    return collectives * profile_.collective_latency_seconds + D(traffic.received_bytes) / bytes_per_second;
  }

  // Time after both sides are ready; both are busy for that long.
  double StageTransfer(const Instruction& i) const {
    const double rate = OnOneNode(Group::kWorld) ? profile_.node_gather_bytes_per_second
                                                 : profile_.network_gather_bytes_per_second;
    return profile_.collective_latency_seconds + D(TrafficOf(spec_.mesh, layout_, i).buffer_bytes) / rate;
  }

  double SmallCollective(const Instruction& i) const {
    return TrafficOf(spec_.mesh, layout_, i).communicates() ? profile_.collective_latency_seconds : 0;
  }

  double Gather(const Instruction& i) const {
    const Bucket& bucket = BucketOf(i);
    if (bucket.read_in_place()) return 0;
    const double own = bucket.in_nf4       ? FromNf4(bucket)
                       : bucket.pieces > 1 ? FromReplica(bucket)
                                           : Cast(bucket, bucket.shard_elements, bucket.types.gathered);
    const double rate =
        OnOneNode(i.group) ? profile_.node_gather_bytes_per_second : profile_.network_gather_bytes_per_second;
    return own + Transfer(i, rate, bucket.in_fp8() ? 2 : 1);  // Numbers, then scales.
  }

  // Time of an exchange of `elements`.
  ExchangeCost Cost(const UnitExchange& exchange, int64_t elements) const {
    if (spec_.mesh.SizeOf(exchange.group) == 1 || elements == 0) return {};
    const double rate = Has(exchange.group, Axis::kReplicate) ? profile_.outer_reduce_bytes_per_second
                        : OnOneNode(exchange.group)           ? profile_.node_reduce_bytes_per_second
                                                              : profile_.network_reduce_bytes_per_second;
    const int64_t bytes = ReceivedBytes(spec_.mesh, exchange, elements);
    return {profile_.collective_latency_seconds + D(bytes) / rate, bytes, 1};
  }

  // Exchanges inside a unit.
  double Exchanges(const UnitFacts& unit, int64_t UnitExchange::*elements) const {
    double seconds = 0;
    for (const UnitExchange& exchange : unit.exchanges) seconds += Cost(exchange, exchange.*elements).seconds;
    return seconds;
  }

  double ForwardAndExchange(const Instruction& i) const {
    const UnitFacts& unit = model_.units[i.unit];
    return Forward(unit, i.recompute) + Exchanges(unit, &UnitExchange::forward_elements);
  }

  // Time of `flops` of a unit's products, in the unit's proportion of FP8 and other precisions.
  double Products(const UnitFacts& unit, double flops) const {
    const double fp8 = unit.fp8_flops == 0 ? 0 : unit.fp8_flops / (unit.forward_flops - unit.attention_flops);
    return flops * ((1 - fp8) / profile_.matmul_flops(spec_.precision.compute) + fp8 / profile_.fp8_flops());
  }

  double Forward(const UnitFacts& unit, Recompute recompute) const {
    if (unit.measured.has_value()) {
      const MeasuredWork& measured = (*unit.measured)[static_cast<size_t>(recompute)];
      return Products(unit, measured.forward + unit.engine_flops) + Memory(unit.forward_bytes);
    }
    const double work = Products(unit, unit.forward_flops - unit.attention_flops) +
                        AttentionWork(unit, profile_.deterministic_forward_slowdown,
                                      profile_.deterministic_forward_slowdown) /
                            profile_.attention_forward_flops +
                        Memory(unit.forward_bytes);
    return AtLeast(unit.forward_kernels, work);
  }

  // Attention FLOPs, scaled relative to the fastest kernel. Deterministic flash attention changes only the
  // backward.
  double AttentionWork(const UnitFacts& unit, double ordered, double flash) const {
    const double slower = spec_.deterministic && spec_.precision.compute != DType::kFp32 ? ordered
                          : unit.flash_work > 0                                          ? flash
                                                                                         : 1;
    return slower * std::max(1.0, unit.flash_work) * unit.attention_flops *
           profile_.attention_factor(spec_.data.sequence_length);
  }

  // Backward of a unit whose calls were measured. They also compute gradients that the job does not use.
  double MeasuredBackward(const Instruction& i) const {
    const UnitFacts& unit = model_.units[i.unit];
    const MeasuredWork& measured = (*unit.measured)[static_cast<size_t>(i.recompute)];
    const double trainable = TrainableShare(model_, i.unit);
    return Products(unit, measured.backward + (1 + trainable) * unit.engine_flops) +
           Memory(unit.backward_bytes) + GradientCopies(unit);
  }

  // One kernel per parameter.
  double GradientCopies(const UnitFacts& unit) const {
    int64_t elements = 0, kernels = 0;
    for (const int param : unit.copied_grads) {
      if (!unit.params[param].trainable) continue;
      elements += unit.params[param].elements();
      ++kernels;
    }
    const int64_t bytes = BytesOf(spec_.precision.compute) + BytesOf(spec_.written_grads());
    return std::max(Memory(elements * bytes), D(kernels) * profile_.kernel_seconds);
  }

  // A frozen weight needs no weight gradient: half of a product's backward.
  double Backward(const Instruction& i) const {
    const UnitFacts& unit = model_.units[i.unit];
    if (unit.measured.has_value()) return MeasuredBackward(i);
    const double matmul = unit.forward_flops - unit.attention_flops;
    const double work =
        Products(unit, (1 + TrainableShare(model_, i.unit)) * matmul) +
        kAttentionBackwardWork *
            AttentionWork(unit, profile_.deterministic_backward_slowdown, kFlashBackwardSlowdown) /
            profile_.attention_backward_flops +
        Memory(unit.backward_bytes) + GradientCopies(unit);
    double seconds = AtLeast(unit.backward_kernels, work) - (i.defers_grads ? DeferredPasses(i.unit) : 0);
    seconds += Exchanges(unit, &UnitExchange::backward_elements);
    if (i.recompute == Recompute::kFull) seconds += ForwardAndExchange(i);
    if (Selects(i)) {
      seconds += Products(unit, unit.selective_flops) + Memory(unit.forward_bytes) +
                 Exchanges(unit, &UnitExchange::selective_elements);
    }
    return seconds;
  }

  // Autograd units save everything; nothing is recomputed.
  bool Selects(const Instruction& i) const {
    const SavedBytes& kept = model_.units[i.unit].saved_bytes;
    return i.recompute == Recompute::kSelective && kept.selective < kept.none;
  }

  double DeferredPasses(int unit) const {
    return TrainableShare(model_, unit) * Products(model_.units[unit], model_.units[unit].deferred_flops);
  }

  // Gradients communicated in less than fp32 are received whole and summed locally in one pass; on CPU into
  // fp32 sums that are then added to the gradient.
  double Reduce(const Instruction& i) const {
    const Bucket& bucket = BucketOf(i);
    double seconds = Transfer(i, OnOneNode(i.group) ? profile_.node_reduce_bytes_per_second
                                                    : profile_.network_reduce_bytes_per_second);
    const int64_t gradient = bucket.shard_elements * BytesOf(bucket.types.gradient);
    if (SumsInOneKernel(spec_, bucket)) {
      return seconds + Memory(bucket.grad_comm_bytes() + (i.accumulate ? 2 : 1) * gradient);
    }
    if (bucket.types.grad_comm != DType::kFp32)
      seconds += Memory(bucket.grad_comm_bytes() + bucket.shard_elements * 4);
    if (i.accumulate) seconds += Memory(bucket.shard_elements * 4 + 2 * gradient);
    return seconds;
  }

  int64_t NormBytes() const {
    int64_t bytes = 0;
    for (const Bucket& bucket : layout_.buckets) {
      if (!bucket.trainable || SquaresComeWithSums(spec_, bucket)) continue;
      bytes += bucket.main_elements * BytesOf(bucket.types.gradient);
    }
    return bytes;
  }

  // Reads and writes parameters and moments; reads gradients.
  int64_t UpdateBytes(const Bucket& bucket) const {
    const BucketTypes& types = bucket.types;
    if (!bucket.trainable) return bucket.main_elements * 2 * BytesOf(types.main);
    const int64_t state = BytesOf(types.main) + spec_.optimizer.moments() * BytesOf(types.moment);
    return bucket.main_elements * (2 * state + BytesOf(types.gradient));
  }

  const Spec& spec_;
  const ModelFacts& model_;
  const Layout& layout_;
  const DeviceProfile& profile_;
  const int64_t ranks_per_node_;
};

}  // namespace

std::vector<double> InstructionSeconds(const Spec& spec, const ModelFacts& model, const Layout& layout,
                                       const Program& program, const DeviceProfile& profile,
                                       Placement placement) {
  const Costs costs(spec, model, layout, profile, placement);
  std::vector<double> seconds;
  for (const Instruction& i : program.instructions) seconds.push_back(costs.Of(i));
  return seconds;
}

std::vector<double> SnapshotSeconds(const Spec& spec, const Layout& layout, const Program& program,
                                    const DeviceProfile& profile) {
  std::vector<double> by_bucket(layout.buckets.size(), 0);
  for (const SnapshotPlace& place : SnapshotPlaces(spec, layout, {spec.mesh, /*rank=*/0})) {
    by_bucket[place.bucket] += HostCopySeconds(spec, profile, place.bytes);
  }
  std::vector<double> seconds;
  for (const Instruction& i : program.instructions) {
    seconds.push_back(i.op == Op::kSnapshot ? by_bucket[i.bucket] : 0);
  }
  return seconds;
}

std::array<ExchangeCost, kGroups> ExchangeCosts(const Spec& spec, const ModelFacts& model,
                                                const Layout& layout, const Program& program,
                                                const DeviceProfile& profile, Placement placement) {
  const Costs costs(spec, model, layout, profile, placement);
  std::array<ExchangeCost, kGroups> sums;
  for (const Instruction& i : program.instructions) costs.AddExchanges(i, &sums);
  return sums;
}

StepSeconds SecondsWithoutProgram(const Spec& spec, const ModelFacts& model, const Layout& layout,
                                  const DeviceProfile& profile, Placement placement) {
  const Costs costs(spec, model, layout, profile, placement);
  StepSeconds seconds;
  for (size_t u = 0; u < model.units.size(); ++u) seconds.units.push_back(costs.OfUnit(static_cast<int>(u)));
  seconds.norm = costs.OfNorm();
  seconds.stage_transfer = costs.OfStageTransfer();
  return seconds;
}

double StepFlops(const Spec& spec, const ModelFacts& model) {
  double flops = 0;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitFacts& unit = model.units[u];
    const double forward = unit.forward_flops - unit.repeated_flops;
    const double products = std::max(0.0, forward - unit.attention_flops);
    // Frozen weights have no weight gradients.
    flops += 3 * forward - (1 - TrainableShare(model, static_cast<int>(u))) * products;
  }
  // World size divided by the stages: all ranks together hold the whole model.
  return flops * D(spec.micro_batches_per_step() * spec.mesh.world() / spec.mesh.size(Axis::kPipeline));
}

}  // namespace fsdpd
