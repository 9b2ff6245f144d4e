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
// Merging two buckets saves a gather and a reduction per pass; padding may cost up to this fraction of the
// unit.
constexpr int64_t kMergePaddingDivisor = 400;
// Row lengths with a least common multiple above this never share a bucket.
constexpr int64_t kLongestQuantum = int64_t{1} << 40;
constexpr int64_t kBlockRows = 128;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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

// A parameter and its quantum: it may be split at multiples of this many elements from its start.
struct Cuttable {
  ParamSlot slot;
  int64_t quantum = 1;
};

int64_t QuantumOf(const ParamFacts& param, const LayoutOptions& options) {
  // With a scale per row, a parameter starts at a multiple of its row length even if there is one shard.
  const bool one_part = options.shards * options.pieces == 1 && options.types.gathered != DType::kFp8;
  if (one_part || param.shape.size() < 2 || param.elements() == 0) return 1;
  // For stacked matrices (experts), a "row" is one whole matrix, unless each row has a scale.
  const bool scaled = options.types.gathered == DType::kFp8;
  const int64_t row = scaled ? param.shape.back() : param.elements() / param.shape[0];
  switch (options.quantum) {
    case Quantum::kElement:
      return 1;
    case Quantum::kRow:
      return row;
    case Quantum::kRows128:
      return row * kBlockRows;
    case Quantum::kWhole:
      return param.elements();
  }
  return 1;
}

Cuttable CuttableOf(const UnitFacts& facts, size_t index, const LayoutOptions& options) {
  const ParamFacts& param = facts.params[index];
  return {{static_cast<int>(index), param.name, param.shape, param.weight_decay, param.lr_scale, 0,
           param.elements(), param.partition, param.owner},
          QuantumOf(param, options)};
}

// Parameters that may share a bucket, while the bucket is formed.
class Packing {
 public:
  Packing(std::vector<Cuttable> params, const LayoutOptions& options)
      : params_(std::move(params)),
        parts_(options.shards * options.pieces),
        param_align_(kParamAlignBytes / BytesOf(options.types.gathered)),
        main_align_(kMainAlignBytes / BytesOf(options.types.gathered)) {
    if (options.quantum == Quantum::kWhole && parts_ > 1) {
      PlaceWhole();
    } else {
      PlaceInOrder();
    }
  }

  bool possible() const { return main_elements_ >= 0; }
  int64_t padded() const { return main_elements_ * parts_; }

  static std::vector<Cuttable> Join(const Packing& a, const Packing& b) {
    std::vector<Cuttable> params = a.params_;
    params.insert(params.end(), b.params_.begin(), b.params_.end());
    return params;
  }

  Bucket Take(int unit, bool trainable, const LayoutOptions& options) {
    Bucket bucket;
    bucket.unit = unit;
    bucket.trainable = trainable;
    bucket.groups = options.groups;
    bucket.types = options.types;
    bucket.shards = options.shards;
    bucket.pieces = options.pieces;
    bucket.slices = options.slices;
    for (Cuttable& param : params_) {
      bucket.elements += param.slot.elements;
      bucket.params.push_back(std::move(param.slot));
    }
    bucket.main_elements = main_elements_;
    bucket.shard_elements = main_elements_ * bucket.pieces;
    bucket.bucket_elements = padded();
    if (trainable) bucket.offloaded = OffloadedOf(bucket, options.offloaded_moments);
    return bucket;
  }

 private:
  // Shard boundaries are multiples of main_elements_, which is a multiple of every quantum, so each parameter
  // only needs to start at a multiple of its own quantum. Sort by quantum, longest first, with parameters
  // that end in a partial block after whole ones: starts are then aligned without padding, and parameters
  // that can be split anywhere fill the end.
  void PlaceInOrder() {
    std::stable_sort(params_.begin(), params_.end(), [](const Cuttable& a, const Cuttable& b) {
      if (a.quantum != b.quantum) return a.quantum > b.quantum;
      return a.slot.elements % a.quantum == 0 && b.slot.elements % b.quantum != 0;
    });
    int64_t end = 0, step = main_align_;
    for (Cuttable& param : params_) {
      step = std::lcm(step, param.quantum);
      if (step > kLongestQuantum) {
        main_elements_ = -1;
        return;
      }
      param.slot.offset = RoundUp(end, std::lcm(param_align_, param.quantum));
      end = param.slot.offset + param.slot.elements;
    }
    main_elements_ = RoundUp(RoundUp(end, parts_) / parts_, step);
  }

  // Longest-processing-time heuristic: longest first into the emptiest part; at most 4/3 of the optimum.
  void PlaceWhole() {
    std::stable_sort(params_.begin(), params_.end(),
                     [](const Cuttable& a, const Cuttable& b) { return a.slot.elements > b.slot.elements; });
    std::vector<int64_t> filled(parts_, 0);
    std::vector<std::pair<int64_t, int64_t>> place;  // (part, offset within it).
    for (const Cuttable& param : params_) {
      const auto emptiest = std::min_element(filled.begin(), filled.end());
      place.emplace_back(emptiest - filled.begin(), *emptiest);
      *emptiest += RoundUp(param.slot.elements, param_align_);
    }
    main_elements_ = *std::max_element(filled.begin(), filled.end());
    for (size_t i = 0; i < params_.size(); ++i) {
      params_[i].slot.offset = place[i].first * main_elements_ + place[i].second;
    }
    std::sort(params_.begin(), params_.end(),
              [](const Cuttable& a, const Cuttable& b) { return a.slot.offset < b.slot.offset; });
  }

  std::vector<Cuttable> params_;  // In order of offset.
  int64_t parts_;
  int64_t param_align_;
  int64_t main_align_;
  int64_t main_elements_ = 0;
};

// One packing per quantum, in order of appearance. Whole-matrix parameters of all sizes share one, to fill
// each other's parts.
std::vector<Packing> ByQuantum(const std::vector<Cuttable>& params, const LayoutOptions& options) {
  std::vector<std::pair<int64_t, std::vector<Cuttable>>> groups;
  for (const Cuttable& param : params) {
    const int64_t key = options.quantum == Quantum::kWhole ? 1 : param.quantum;
    const auto found =
        std::find_if(groups.begin(), groups.end(), [key](const auto& group) { return group.first == key; });
    if (found == groups.end()) {
      groups.push_back({key, {param}});
    } else {
      found->second.push_back(param);
    }
  }
  std::vector<Packing> packings;
  for (auto& [key, members] : groups) packings.emplace_back(std::move(members), options);
  return packings;
}

// Merges the pair of packings with the least resulting padding, while padding does not grow or stays within
// `allowed`.
bool MergeBest(std::vector<Packing>* packings, int64_t elements, int64_t allowed,
               const LayoutOptions& options) {
  int64_t padded = 0;
  for (const Packing& packing : *packings) padded += packing.padded();
  int64_t best = std::max(padded, elements + allowed) + 1;
  std::pair<size_t, size_t> pair;
  for (size_t a = 0; a < packings->size(); ++a) {
    for (size_t b = a + 1; b < packings->size(); ++b) {
      const Packing both(Packing::Join((*packings)[a], (*packings)[b]), options);
      const int64_t total = padded - (*packings)[a].padded() - (*packings)[b].padded() + both.padded();
      if (!both.possible() || total >= best) continue;
      best = total;
      pair = {a, b};
    }
  }
  if (pair.first == pair.second) return false;
  (*packings)[pair.first] =
      Packing(Packing::Join((*packings)[pair.first], (*packings)[pair.second]), options);
  packings->erase(packings->begin() + static_cast<int64_t>(pair.second));
  return true;
}

// Adds the FP8 buckets: one per row length.
void AddFp8Buckets(const std::vector<Cuttable>& params, int unit, bool trainable,
                   const LayoutOptions& options, std::vector<Bucket>* buckets) {
  std::map<int64_t, std::vector<Cuttable>> by_row;
  for (const Cuttable& param : params) by_row[param.slot.shape.back()].push_back(param);
  for (auto& [row, members] : by_row) {
    Packing packing(std::move(members), options);
    buckets->push_back(packing.Take(unit, trainable, options));
    buckets->back().row = row;
  }
}

// Adds buckets for the matching parameters; `over`: TensorPartition::shard_group(). Selection biases are
// added by AddBalancing.
void AddBuckets(const UnitFacts& facts, int unit, bool trainable, Group over, TiedReplica tied_replica,
                const LayoutOptions& options, std::vector<Bucket>* buckets) {
  std::vector<Cuttable> params, in_fp8;
  int64_t elements = 0;
  for (size_t i = 0; i < facts.params.size(); ++i) {
    const ParamFacts& param = facts.params[i];
    if (param.trainable != trainable || param.partition.shard_group() != over ||
        param.tied_replica != tied_replica)
      continue;
    if (param.is_selection_bias()) continue;
    if (param.fp8) {
      FSDPD_CHECK(tied_replica == TiedReplica::kNone);
      in_fp8.push_back(CuttableOf(facts, i, options.GatheredInFp8()));
      continue;
    }
    elements += param.elements();
    params.push_back(CuttableOf(facts, i, options));
  }
  AddFp8Buckets(in_fp8, unit, trainable, options.GatheredInFp8(), buckets);
  std::vector<Packing> packings = ByQuantum(params, options);
  while (packings.size() > 1 && MergeBest(&packings, elements, elements / kMergePaddingDivisor, options)) {
  }
  for (Packing& packing : packings) {
    FSDPD_CHECK(packing.possible());
    buckets->push_back(packing.Take(unit, trainable, options));
    buckets->back().tied_replica = tied_replica;
  }
}

void AddBalancing(const UnitFacts& facts, int unit, const LayoutOptions& options,
                  std::vector<Bucket>* buckets) {
  for (size_t i = 0; i < facts.params.size(); ++i) {
    if (!facts.params[i].is_selection_bias()) continue;
    Packing packing({CuttableOf(facts, i, options)}, options);
    buckets->push_back(packing.Take(unit, /*trainable=*/false, options));
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
  narrow.quantum = Quantum::kRow;
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
  // Unsharded gradients are accumulated in place and so are fp32.
  options.types.grad_comm = spec.shards_grads() ? spec.precision.grad_comm : DType::kFp32;
  options.types.gathered = spec.precision.compute;
  // The CUDA optimizer kernel supports split fp32; on CPU, and for SGD, LibTorch needs plain fp32.
  options.types.split_fp32 = spec.device == DeviceKind::kCuda &&
                             spec.optimizer.kind == OptimizerKind::kAdamW &&
                             options.types.gathered == DType::kBf16;
  options.types.gradient = spec.precision.main_grads;
  options.types.moment = spec.precision.moments;
  if (spec.offload_optimizer) options.offloaded_moments = spec.optimizer.moments();
  return options;
}

}  // namespace fsdpd
