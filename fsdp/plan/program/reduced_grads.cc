#include "fsdp/plan/program/reduced_grads.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

// A unit's Reduces overlap the next unit's Backward, which needs a second set of buffers. A third set would
// not help while the reduce lane keeps up, and costs another unit's gradient.
constexpr size_t kReducesInFlight = 2;

}  // namespace

ReducedGrads::ReducedGrads(const Spec& spec, const Layout& layout, ProgramWriter* writer)
    : layout_(layout),
      writer_(writer),
      whole_(!spec.shards_grads()),
      last_micro_batch_(static_cast<int>(spec.micro_batches_per_step()) - 1),
      lends_(layout.units.size(), false),
      set_by_(layout.buckets.size(), -1),
      reduced_(layout.buckets.size(), -1),
      update_(layout.buckets.size(), -1) {
  for (const UnitLayout& unit : layout.units) {
    if (unit.borrows < 0) continue;
    FSDPD_CHECK(!lends_[unit.borrows]);  // A second borrower would have to add where the first one sets.
    lends_[unit.borrows] = true;
  }
}

// Otherwise the gradient is stored only in the buffer.
bool ReducedGrads::IsSharded(int bucket) const {
  return layout_.buckets[bucket].groups.shard != Group::kSelf;
}

std::vector<int> ReducedGrads::TrainableBuckets(int unit) const {
  std::vector<int> buckets;
  for (const int b : layout_.units[unit].buckets) {
    if (layout_.buckets[b].trainable) buckets.push_back(b);
  }
  return buckets;
}

std::vector<int> ReducedGrads::WrittenBy(int unit) const {
  std::vector<int> buckets = TrainableBuckets(unit);
  const int lender = layout_.units[unit].borrows;
  if (lender < 0) return buckets;
  const std::vector<int> borrowed = TrainableBuckets(lender);
  buckets.insert(buckets.begin(), borrowed.begin(), borrowed.end());
  return buckets;
}

void ReducedGrads::Backward(Instruction backward, std::vector<int> after) {
  const std::vector<int> buckets = WrittenBy(backward.unit);
  const bool defers_grads = !GivesInputGrad(backward.op);
  backward.accumulate = lends_[backward.unit] || (whole_ && backward.micro_batch > 0);
  for (const int b : buckets) {
    const int buffer = writer_->Find(BufferKind::kReduce, b);
    // Deferred weight gradients write other parameters of buffers that are already set.
    if (backward.accumulate || defers_grads) backward.uses.push_back({buffer, Access::kRead});
    backward.uses.push_back({buffer, Access::kWrite});
    after.push_back(reduced_[b]);
  }
  if (!whole_ && !buckets.empty() && groups_.size() >= kReducesInFlight) {
    after.push_back(groups_[groups_.size() - kReducesInFlight].last_reduce);
  }
  const bool sets = !backward.accumulate && !defers_grads;
  last_backward_ = writer_->Append(std::move(backward), std::move(after));
  if (!sets) return;
  for (const int b : buckets) set_by_[b] = last_backward_;
}

void ReducedGrads::Reduce(int unit, int micro_batch) {
  if (whole_ && micro_batch < last_micro_batch_) return;
  ReduceGroup group;
  group.buckets = TrainableBuckets(unit);
  group.backward = last_backward_;
  for (const int b : group.buckets) {
    group.last_reduce = ReduceBucket(b, micro_batch, last_backward_);
    group.set_by.push_back(set_by_[b]);
  }
  if (!group.buckets.empty()) groups_.push_back(std::move(group));
}

int ReducedGrads::ReduceBucket(int bucket, int micro_batch, int backward) {
  const int buffer = writer_->Find(BufferKind::kReduce, bucket);
  const int wire = writer_->Find(BufferKind::kWire, bucket);
  Instruction reduce{Op::kReduce, layout_.buckets[bucket].unit, bucket, micro_batch};
  reduce.accumulate = !whole_ && micro_batch > 0;
  reduce.uses = {{buffer, Access::kRead}, {buffer, Access::kWrite}};
  if (wire >= 0) reduce.uses.push_back({wire, Access::kWrite});
  const int index = writer_->Append(std::move(reduce), {backward});
  reduced_[bucket] = index;
  if (wire >= 0) writer_->Live(wire, index, index);
  // With no_shard, Update reads the buffer.
  if (IsSharded(bucket)) writer_->Live(buffer, set_by_[bucket], index);
  if (layout_.buckets[bucket].groups.replicate != Group::kSelf && micro_batch == last_micro_batch_)
    ReduceOuter(bucket, index);
  return index;
}

void ReducedGrads::ReduceOuter(int bucket, int reduce) {
  Instruction outer{Op::kReduceOuter, layout_.buckets[bucket].unit, bucket};
  if (!IsSharded(bucket)) {
    const int buffer = writer_->Find(BufferKind::kReduce, bucket);
    outer.uses = {{buffer, Access::kRead}, {buffer, Access::kWrite}};
  }
  writer_->Append(std::move(outer), {reduce});
}

// Listed after all other Reduces: in both stages this is one of the last gradients of a step.
void ReducedGrads::SumTiedReplica(int bucket) {
  const bool lends = layout_.buckets[bucket].tied_replica == TiedReplica::kOriginal;
  const int buffer = writer_->Find(BufferKind::kReduce, bucket);
  for (const bool sends : {!lends, lends}) {
    Instruction stage_transfer{sends ? Op::kSendTiedGrad : Op::kReceiveTiedGrad, layout_.buckets[bucket].unit,
                               bucket};
    stage_transfer.accumulate = !sends && lends;
    if (!IsSharded(bucket)) {
      if (sends || lends) stage_transfer.uses.push_back({buffer, Access::kRead});
      if (!sends) stage_transfer.uses.push_back({buffer, Access::kWrite});
    }
    const LaneId before = lends ? LaneId::kReceive : LaneId::kSend;
    std::vector<int> after = {reduced_[bucket], writer_->last(LaneId::kOuter)};
    if (sends == lends) after.push_back(writer_->last(before));
    writer_->Append(std::move(stage_transfer), std::move(after));
  }
}

int ReducedGrads::Norm() {
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    if (layout_.buckets[b].trainable && layout_.buckets[b].tied_replica != TiedReplica::kNone)
      SumTiedReplica(static_cast<int>(b));
  }
  Instruction norm{Op::kNorm};
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    const int b = static_cast<int>(i);
    const int buffer = writer_->Find(BufferKind::kReduce, b);
    if (buffer >= 0 && !IsSharded(b)) norm.uses.push_back({buffer, Access::kRead});
  }
  return writer_->Append(std::move(norm), {last_backward_, writer_->last(LaneId::kOuter),
                                           writer_->last(LaneId::kSend), writer_->last(LaneId::kReceive)});
}

int ReducedGrads::Update(int bucket, int norm, int fetch) {
  Instruction update{Op::kUpdate, layout_.buckets[bucket].unit, bucket};
  const int buffer = writer_->Find(BufferKind::kReduce, bucket);  // -1 if it has no gradient.
  const bool reads = buffer >= 0 && !IsSharded(bucket);
  if (reads) update.uses = {{buffer, Access::kRead}};
  const int state = writer_->Find(BufferKind::kState, bucket);
  if (state >= 0) {
    update.uses.push_back({state, Access::kRead});
    update.uses.push_back({state, Access::kWrite});
  }
  update_[bucket] = writer_->Append(std::move(update), {norm, fetch});
  if (reads) writer_->Live(buffer, set_by_[bucket], update_[bucket]);
  return update_[bucket];
}

// A reduce buffer is free for compute only once compute waits for its Reduce: before the Backward
// kReducesInFlight later, or the Backward that sets the same buffer again. A shorter occupancy would be
// correct but would serialize the lanes.
void ReducedGrads::Occupy() {
  std::vector<int> next_set(layout_.buckets.size(), writer_->next());
  for (size_t i = groups_.size(); i-- > 0;) {
    const ReduceGroup& group = groups_[i];
    const size_t waits = i + kReducesInFlight;
    const int freed = waits < groups_.size() ? groups_[waits].backward : writer_->next();
    for (size_t k = 0; k < group.buckets.size(); ++k) {
      const int b = group.buckets[k];
      const int reduce = writer_->Find(BufferKind::kReduce, b);
      const int wire = writer_->Find(BufferKind::kWire, b);
      const int end = std::min(freed, next_set[b]) - 1;
      next_set[b] = group.set_by[k];
      if (whole_) {
        writer_->OccupyAlways(reduce);
        continue;
      }
      writer_->Occupy(reduce, group.set_by[k], end);
      if (wire >= 0) writer_->Occupy(wire, group.backward, end);
    }
  }
}

int ReducedGrads::UpdateOrEnd(int bucket) const {
  if (update_[bucket] >= 0) return update_[bucket];
  // The first Update follows Norm, which follows every Reduce and all earlier compute.
  for (const int update : update_) {
    if (update >= 0) return update;
  }
  return writer_->last(LaneId::kCompute);
}

}  // namespace fsdpd
