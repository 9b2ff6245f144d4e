#include "fsdp/plan/predict/cost.h"

#include <algorithm>

namespace fsdpd {
namespace {

// Attention's backward computes five products where its forward computes two.
constexpr double kAttentionBackwardWork = 2.5;

double D(int64_t value) { return static_cast<double>(value); }

// Bytes that cross a group's ring when `bytes` are in all of its parts together.
int64_t OfOthers(int64_t bytes, int64_t ranks) { return bytes / ranks * (ranks - 1); }

bool Trains(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& i) { return i.op == Op::kBackward; });
}

class Costs {
 public:
  Costs(const Spec& spec, const ModelFacts& model, const Layout& layout, const Program& program,
        const DeviceProfile& profile, Placement placement)
      : trains_(Trains(program)),
        spec_(spec),
        model_(model),
        layout_(layout),
        profile_(profile),
        one_node_(spec.inner_size() <= placement.ranks_per_node) {}

  double Of(const Instruction& i) const {
    switch (i.op) {
      case Op::kPublish:
        return Cast(BucketOf(i).main_elements) + Transfer(i, profile_.outer_gather_bytes_per_second);
      case Op::kGather:
        return Gather(i);
      case Op::kForward:
        return Forward(model_.units[i.unit]);
      case Op::kRelease:
        return 0;
      case Op::kBackward:
        return Backward(i);
      case Op::kReduce:
        return Reduce(i);
      case Op::kReduceOuter:
        return Transfer(i, profile_.outer_reduce_bytes_per_second);
      case Op::kNorm:
        return Memory(NormBytes()) + SmallCollective();
      case Op::kUpdate:
        return Memory(UpdateBytes(BucketOf(i)));
      case Op::kLoss:
        return SmallCollective();
    }
    return 0;
  }

 private:
  const Bucket& BucketOf(const Instruction& i) const { return layout_.buckets[i.bucket]; }
  double Memory(int64_t bytes) const { return D(bytes) / profile_.memory_bytes_per_second; }

  // From fp32 into compute precision; gradients' type is no concern here.
  double Cast(int64_t elements) const { return Memory(elements * (4 + BytesOf(spec_.compute))); }

  double Transfer(const Instruction& i, double bytes_per_second) const {
    const int64_t bytes = CommunicatedBytes(spec_, layout_, i);
    return bytes == 0 ? 0 : profile_.collective_latency_seconds + D(bytes) / bytes_per_second;
  }

  double SmallCollective() const { return spec_.world == 1 ? 0 : profile_.collective_latency_seconds; }

  double Gather(const Instruction& i) const {
    const int64_t shard = BucketOf(i).shard_elements;
    // A replica is in compute precision already and only copied.
    const double own = spec_.shards_over_outer() ? Memory(2 * shard * BytesOf(spec_.compute)) : Cast(shard);
    return own + Transfer(i, one_node_ ? profile_.node_gather_bytes_per_second
                                       : profile_.network_gather_bytes_per_second);
  }

  double Forward(const UnitFacts& unit) const {
    if (trains_ && unit.loss_in_backward) return 0;  // Its norm is nothing beside the products.
    return (unit.forward_flops - unit.attention_flops) / profile_.matmul_flops(spec_.compute) +
           unit.attention_flops / profile_.attention_forward_flops + Memory(unit.forward_bytes);
  }

  // A frozen parameter needs no gradient of its own, which is half of a product's backward.
  double Backward(const Instruction& i) const {
    const UnitFacts& unit = model_.units[i.unit];
    const double matmul = unit.forward_flops - unit.attention_flops;
    const double products = ((unit.loss_in_backward ? 2 : 1) + TrainableShare(i.unit)) * matmul;
    double seconds = products / profile_.matmul_flops(spec_.compute) +
                     kAttentionBackwardWork * unit.attention_flops / profile_.attention_backward_flops +
                     Memory(unit.backward_bytes);
    if (i.recompute == Recompute::kFull) seconds += Forward(unit);
    if (i.recompute == Recompute::kSelective) seconds += Memory(unit.forward_bytes);
    return seconds;
  }

  double TrainableShare(int unit) const {
    int64_t all = 0, trainable = 0;
    const int lender = model_.units[unit].borrows;
    for (const int u : {unit, lender}) {
      if (u < 0) continue;
      for (const ParamFacts& param : model_.units[u].params) {
        all += param.elements();
        if (param.trainable) trainable += param.elements();
      }
    }
    return all == 0 ? 0 : D(trainable) / D(all);
  }

  // A wire narrower than fp32 is received whole and summed here, in one pass.
  double Reduce(const Instruction& i) const {
    const Bucket& bucket = BucketOf(i);
    double seconds = Transfer(
        i, one_node_ ? profile_.node_reduce_bytes_per_second : profile_.network_reduce_bytes_per_second);
    if (GradType(spec_) != DType::kFp32) {
      seconds += Memory(bucket.bucket_elements * BytesOf(GradType(spec_)) + bucket.shard_elements * 4);
    }
    if (i.accumulate) seconds += Memory(bucket.shard_elements * (4 + 2 * BytesOf(spec_.main_grads)));
    return seconds;
  }

  int64_t NormBytes() const {
    int64_t bytes = 0;
    for (const Bucket& bucket : layout_.buckets) {
      if (bucket.trainable) bytes += bucket.main_elements * BytesOf(spec_.main_grads);
    }
    return bytes;
  }

  // Parameters and moments are read and written, gradients read.
  int64_t UpdateBytes(const Bucket& bucket) const {
    const int64_t moments = 2 * spec_.optimizer.moments() * BytesOf(spec_.moments);
    return bucket.main_elements * (8 + BytesOf(spec_.main_grads) + moments);
  }

  const bool trains_;
  const Spec& spec_;
  const ModelFacts& model_;
  const Layout& layout_;
  const DeviceProfile& profile_;
  const bool one_node_;
};

}  // namespace

std::vector<double> InstructionSeconds(const Spec& spec, const ModelFacts& model, const Layout& layout,
                                       const Program& program, const DeviceProfile& profile,
                                       Placement placement) {
  const Costs costs(spec, model, layout, program, profile, placement);
  std::vector<double> seconds;
  for (const Instruction& i : program.instructions) seconds.push_back(costs.Of(i));
  return seconds;
}

int64_t CommunicatedBytes(const Spec& spec, const Layout& layout, const Instruction& instruction) {
  if (instruction.bucket < 0) return 0;
  const Bucket& bucket = layout.buckets[instruction.bucket];
  const int64_t compute = BytesOf(spec.compute);
  switch (instruction.op) {
    case Op::kPublish:
      return OfOthers(bucket.shard_elements * compute, spec.outer_size);
    case Op::kGather:
      return OfOthers(bucket.bucket_elements * compute, layout.shards);
    case Op::kReduce: {
      const int64_t once = OfOthers(bucket.bucket_elements * BytesOf(GradType(spec)), spec.inner_size());
      return spec.strategy == Strategy::kNoShard ? 2 * once : once;  // An all-reduce goes round twice.
    }
    case Op::kReduceOuter: {
      const int64_t once = OfOthers(bucket.shard_elements * 4, spec.outer_size);
      return spec.shards_over_outer() ? once : 2 * once;
    }
    default:
      return 0;
  }
}

double StepFlops(const Spec& spec, const ModelFacts& model) {
  double forward = 0;
  for (const UnitFacts& unit : model.units) forward += unit.forward_flops;
  return 3 * forward * D(spec.micro_batches_per_step() * spec.world);
}

}  // namespace fsdpd
