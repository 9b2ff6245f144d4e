#include "fsdp/plan/layout/layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int64_t kParamAlignBytes = 256;
constexpr int64_t kMainAlignBytes = 16;
constexpr int64_t kStateAlignBytes = 256;
constexpr int64_t kNf4Row = 4 * kNf4Block;  // Its bytes are a multiple of kMainAlignBytes.

std::vector<StatePart> OffloadedOf(const Bucket& bucket, int moments) {
  std::vector<StatePart> parts;
  if (moments < 0) return parts;
  int64_t end = 0;
  const auto add = [&](int moment, int64_t element_bytes) {
    const int64_t bytes = bucket.main_elements * element_bytes;
    if (bytes > 0) parts.push_back({moment, end, bytes});
    end += RoundUp(bytes, kStateAlignBytes);
  };
  if (bucket.types.split_fp32) add(/*moment=*/-1, BytesOf(bucket.types.main) / 2);
  for (int m = 0; m < moments; ++m) add(m, BytesOf(bucket.types.moment));
  return parts;
}

ParamSlot SlotOf(const UnitFacts& facts, size_t index) {
  const ParamFacts& param = facts.params[index];
  return {static_cast<int>(index), param.name,      param.shape, param.weight_decay, param.lr_scale, 0,
          param.elements(),        param.partition, param.owner};
}

// `row`: shard boundaries and parameters start at multiples of this many elements.
Bucket MakeBucket(std::vector<ParamSlot> params, int64_t row, int unit, bool trainable,
                  const LayoutOptions& options) {
  const int64_t element_bytes = BytesOf(options.types.gathered), parts = options.shards * options.pieces;
  const int64_t align = std::lcm(kParamAlignBytes / element_bytes, row);
  Bucket bucket;
  bucket.unit = unit;
  bucket.trainable = trainable;
  bucket.groups = options.groups;
  bucket.types = options.types;
  if (options.lora && !trainable) {
    bucket.of_base = true;
    bucket.types.main = bucket.types.gathered;
    bucket.types.split_fp32 = false;
  }
  bucket.shards = options.shards;
  bucket.pieces = options.pieces;
  bucket.slices = options.slices;
  int64_t end = 0;
  for (ParamSlot& param : params) {
    param.offset = RoundUp(end, align);
    end = param.offset + param.elements;
    bucket.elements += param.elements;
  }
  bucket.params = std::move(params);
  bucket.main_elements = RoundUp((end + parts - 1) / parts, std::lcm(kMainAlignBytes / element_bytes, row));
  bucket.shard_elements = bucket.main_elements * bucket.pieces;
  bucket.bucket_elements = bucket.shard_elements * bucket.shards;
  if (trainable) bucket.offloaded = OffloadedOf(bucket, options.offloaded_moments);
  return bucket;
}

// Adds buckets for the matching parameters; `over`: TensorPartition::shard_group(). Selection biases are
// added by AddBalancing.
void AddBuckets(const UnitFacts& facts, int unit, bool trainable, Group over, TiedReplica tied_replica,
                const LayoutOptions& options, std::vector<Bucket>* buckets) {
  std::vector<ParamSlot> params, in_nf4;
  std::map<int64_t, std::vector<ParamSlot>> in_fp8;  // By row length.
  for (size_t i = 0; i < facts.params.size(); ++i) {
    const ParamFacts& param = facts.params[i];
    if (param.trainable != trainable || param.partition.shard_group() != over ||
        param.tied_replica != tied_replica || param.is_selection_bias() || param.in_fp32)
      continue;
    FSDPD_CHECK(!param.fp8 || tied_replica == TiedReplica::kNone);
    (param.fp8 ? in_fp8[param.shape.back()] : param.nf4 ? in_nf4 : params).push_back(SlotOf(facts, i));
  }
  if (!in_nf4.empty()) {
    buckets->push_back(MakeBucket(std::move(in_nf4), kNf4Row, unit, trainable, options));
    buckets->back().in_nf4 = true;
  }
  for (auto& [row, slots] : in_fp8) {
    buckets->push_back(MakeBucket(std::move(slots), row, unit, trainable, options.GatheredInFp8()));
    buckets->back().row = row;
  }
  if (params.empty()) return;
  buckets->push_back(MakeBucket(std::move(params), /*row=*/1, unit, trainable, options));
  buckets->back().tied_replica = tied_replica;
}

void AddBalancing(const UnitFacts& facts, int unit, const LayoutOptions& options,
                  std::vector<Bucket>* buckets) {
  for (size_t i = 0; i < facts.params.size(); ++i) {
    if (!facts.params[i].is_selection_bias() && !facts.params[i].in_fp32) continue;
    buckets->push_back(MakeBucket({SlotOf(facts, i)}, /*row=*/1, unit, /*trainable=*/false, options));
    buckets->back().choices_begin = facts.params[i].choices_begin;
  }
}

UnitLayout MakeUnitLayout(const UnitFacts& facts, int unit, const LayoutOptions& options,
                          std::vector<Bucket>* buckets) {
  int64_t expert_parts = 1;
  for (const ParamFacts& param : facts.params) {
    if (param.partition.shard_group() == Group::kTensor) FSDPD_CHECK(param.partition.parts == options.slices);
    if (param.partition.shard_group() == Group::kExpert) expert_parts = param.partition.parts;
  }
  UnitLayout layout;
  layout.name = facts.name;
  layout.borrows = facts.borrows;
  layout.backward_reads = facts.backward_reads;
  layout.exchanges = facts.exchanges;
  layout.params.resize(facts.params.size());
  const size_t first = buckets->size();
  for (const bool trainable : {true, false}) {
    for (const TiedReplica tied_replica : {TiedReplica::kNone, TiedReplica::kOriginal, TiedReplica::kCopy}) {
      if (options.slices > 1)
        AddBuckets(facts, unit, trainable, Group::kTensor, tied_replica, options, buckets);
      AddBuckets(facts, unit, trainable, Group::kSelf, tied_replica, options.WithoutTensorParallel(),
                 buckets);
      if (expert_parts > 1)
        AddBuckets(facts, unit, trainable, Group::kExpert, tied_replica, options.WithExperts(expert_parts),
                   buckets);
    }
  }
  AddBalancing(facts, unit, options.WithoutTensorParallel().GatheredInFp32(), buckets);
  for (size_t b = first; b < buckets->size(); ++b) {
    const int bucket = static_cast<int>(b);
    layout.buckets.push_back(bucket);
    const std::vector<ParamSlot>& slots = (*buckets)[b].params;
    for (size_t i = 0; i < slots.size(); ++i) layout.params[slots[i].param] = {bucket, static_cast<int>(i)};
  }
  return layout;
}

}  // namespace

int64_t Layout::elements() const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets) sum += bucket.elements * bucket.slices;
  return sum;
}

double Layout::padding_ratio() const {
  double own = 0, padded = 0;
  for (const Bucket& bucket : buckets) {
    own += static_cast<double>(bucket.elements);
    padded += static_cast<double>(bucket.bucket_elements);
  }
  return own == 0 ? 0 : (padded - own) / own;
}

std::vector<Group> Layout::exchanged_groups() const {
  std::vector<Group> groups;
  for (const UnitLayout& unit : units) {
    for (const UnitExchange& exchange : unit.exchanges) {
      if (std::find(groups.begin(), groups.end(), exchange.group) == groups.end())
        groups.push_back(exchange.group);
    }
  }
  return groups;
}

int64_t Bucket::offloaded_bytes() const {
  if (offloaded.empty()) return 0;
  return RoundUp(offloaded.back().offset + offloaded.back().bytes, kStateAlignBytes);
}

BucketRange ShardRange(const Bucket& bucket, int64_t shard) {
  FSDPD_CHECK(shard >= 0 && shard < bucket.shards);
  return {shard * bucket.shard_elements, bucket.shard_elements};
}

BucketRange MainRange(const Bucket& bucket, int64_t shard, int64_t piece) {
  FSDPD_CHECK(piece >= 0 && piece < bucket.pieces);
  return {ShardRange(bucket, shard).begin + piece * bucket.main_elements, bucket.main_elements};
}

BucketRange ShardRange(const Bucket& bucket, const MeshPosition& position) {
  return ShardRange(bucket, position.IndexIn(bucket.groups.shard));
}

BucketRange MainRange(const Bucket& bucket, const MeshPosition& position) {
  return MainRange(bucket, position.IndexIn(bucket.groups.shard), position.IndexIn(bucket.groups.pieces));
}

bool HasFirstCopy(const Bucket& bucket, const MeshPosition& position) {
  if (bucket.tied_replica == TiedReplica::kCopy) return false;
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    const BucketGroups& groups = bucket.groups;
    const bool partitioned = Has(groups.shard, axis) || Has(groups.pieces, axis) || Has(groups.slices, axis);
    if (axis == Axis::kPipeline) continue;  // Other stages hold other buckets.
    if (!partitioned && position.mesh.IndexAlong(axis, position.rank) > 0) return false;
  }
  return true;
}

std::vector<BucketPiece> PiecesOf(const Bucket& bucket, BucketRange range) {
  const int64_t range_end = range.begin + range.elements;
  std::vector<BucketPiece> pieces;
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const ParamSlot& param = bucket.params[i];
    const int64_t begin = std::max(range.begin, param.offset);
    const int64_t end = std::min(range_end, param.offset + param.elements);
    if (begin >= end) continue;
    pieces.push_back({static_cast<int>(i), begin - param.offset, begin - range.begin, end - begin});
  }
  return pieces;
}

// Tensor-parallel ranks hold the same parameters here, so they become part of the shard group.
LayoutOptions LayoutOptions::WithoutTensorParallel() const {
  LayoutOptions whole = *this;
  if (slices == 1) return whole;
  whole.groups.slices = Group::kSelf;
  whole.groups.reduce = Group::kReplica;
  whole.slices = 1;
  if (groups.shard == Group::kSelf) return whole;
  whole.groups.shard = Group::kReplica;
  whole.shards = shards * slices;
  return whole;
}

// Expert-parallel ranks hold different experts, so they leave the shard group.
LayoutOptions LayoutOptions::WithExperts(int64_t parts) const {
  FSDPD_CHECK(slices == 1 && (groups.shard == Group::kSelf || shards % parts == 0));
  LayoutOptions own = *this;
  own.groups.slices = Group::kExpert;
  own.groups.reduce = Group::kExpertShard;
  own.slices = parts;
  if (groups.shard == Group::kSelf) return own;
  own.groups.shard = Group::kExpertShard;
  own.shards = shards / parts;
  return own;
}

LayoutOptions LayoutOptions::GatheredInFp8() const {
  LayoutOptions narrow = *this;
  narrow.types.gathered = DType::kFp8;
  return narrow;
}

LayoutOptions LayoutOptions::GatheredInFp32() const {
  LayoutOptions wide = *this;
  wide.types.gathered = DType::kFp32;
  wide.types.split_fp32 = false;
  return wide;
}

Layout MakeLayout(const ModelFacts& model, const LayoutOptions& options) {
  FSDPD_CHECK(options.shards > 0 && options.pieces > 0 && options.slices > 0);
  Layout layout;
  layout.stage = model.stage;
  layout.choices = model.choices;
  for (size_t u = 0; u < model.units.size(); ++u) {
    layout.units.push_back(MakeUnitLayout(model.units[u], static_cast<int>(u), options, &layout.buckets));
  }
  return layout;
}

bool SumsInOneKernel(const Spec& spec, const Bucket& bucket) {
  return spec.device == DeviceKind::kCuda && bucket.groups.shard != Group::kSelf &&
         bucket.types.grad_comm != DType::kFp32;
}

bool SquaresComeWithSums(const Spec& spec, const Bucket& bucket) {
  return SumsInOneKernel(spec, bucket) && bucket.groups.replicate == Group::kSelf &&
         bucket.tied_replica == TiedReplica::kNone;
}

LayoutOptions LayoutOptionsOf(const Spec& spec) {
  LayoutOptions options;
  BucketGroups& groups = options.groups;
  groups.shard = spec.shards_optimizer() ? Group::kShard : Group::kSelf;
  groups.pieces = spec.shards_over_outer() ? Group::kReplicate : Group::kSelf;
  groups.reduce = Group::kShard;
  groups.replicate = spec.mesh.size(Axis::kReplicate) > 1 ? Group::kReplicate : Group::kSelf;
  groups.slices = spec.mesh.size(Axis::kTensor) > 1 ? Group::kTensor : Group::kSelf;
  options.shards = spec.mesh.SizeOf(groups.shard);
  options.pieces = spec.mesh.SizeOf(groups.pieces);
  options.slices = spec.mesh.SizeOf(groups.slices);
  options.types.grad_comm = spec.written_grads();
  options.types.gathered = spec.precision.compute;
  // The CUDA optimizer kernel supports split fp32; on CPU, and for SGD, LibTorch needs plain fp32.
  options.types.split_fp32 = spec.device == DeviceKind::kCuda &&
                             spec.optimizer.kind == OptimizerKind::kAdamW &&
                             options.types.gathered == DType::kBf16;
  options.types.gradient = spec.precision.main_grads;
  options.types.moment = spec.precision.moments;
  options.lora = spec.lora.enabled();
  if (spec.offload_optimizer) options.offloaded_moments = spec.optimizer.moments();
  return options;
}

}  // namespace fsdpd
