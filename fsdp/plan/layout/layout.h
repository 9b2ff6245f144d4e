// Who owns which elements. A unit's parameters are put into buckets by what must not be mixed in one
// collective or update (trainable, frozen, or a selection bias that steps move; and the row length, where the
// quantum is a row or a block of rows, since one bucket for all would have to be padded to the rows' least
// common multiple: DeepSeek-V3's dense layer by 81% over 1,024 ranks, so by 0.8%. Row lengths share a bucket
// where that pads no more, or the unit's padding stays within 0.25%). A bucket's parameters lie one after the
// other, the bucket is cut into equal shards, and shard i belongs to the ranks whose index in the bucket's
// shard group is i. So a gather is in place and equal-sized, a parameter is contiguous in the gathered
// bucket, and offsets are computed everywhere and exchanged nowhere.
//
// The quantum says where a cut may fall within a parameter: at any element (the default), between rows,
// between blocks of 128 rows (FP8 with blockwise scales), or nowhere (whole-matrix optimizers). Parameters of
// fewer than two dimensions are always cut at any element. Equal shards need about as many quanta as ranks:
// elements and rows pad real layers by less than 1% up to 1,024 ranks (layout_test prints the table), blocks
// of 128 rows and whole matrices only while a layer has many more of them than there are ranks. A shard may
// hold none of a small parameter, and a rank with an empty part is normal. Every parameter starts on a
// 256-byte boundary in compute precision, every main shard on a 16-byte one (what vector loads and NCCL's
// fast path ask for); what is between is padding: zero, and stays zero.
//
// Each bucket says which group of ranks cuts it into shards, and which sums its gradients. Where ranks have
// slices of matrices (the tensor axis, tensor_partition.h), those who share a slice cut and sum a bucket of
// slices; parameters that all have whole have buckets of their own, cut and summed over all of a replica: so
// gradients of what each slice used are added up, and each of these parameters has one owner in the replica.
// Where ranks have a layer's experts among them (the expert axis), experts have buckets of their own, cut and
// summed by those who have the same ones; a gradient then has what all tokens added that came from anywhere.
// Matrices that travel in FP8, with a scale a row, have buckets of their own, one for each length of a row,
// which is never cut, and so are padded more where rows do not share out among ranks (8B over 768 by 3.8%):
// the scales of a bucket lie behind its numbers, one after the other, and each is of one owner's numbers
// alone. Where replicas shard the optimizer (HFSDP), they cut each shard again into equal main pieces, of
// which the o-th replica owns the o-th. And each says in which types it is stored, gathered, sent and summed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

enum class Quantum { kElement, kRow, kRows128, kWhole };

struct ParamSlot {
  int param = 0;  // Its number within the unit's facts.
  std::string name;
  std::vector<int64_t> shape;
  double weight_decay = 0;
  double lr_scale = 1;
  int64_t offset = 0;  // Elements from the bucket's start.
  int64_t elements = 0;
  TensorPartition cut = {};  // Of a cut one, shape and elements are a slice's.
  std::string owner = {};    // ParamFacts'.

  int64_t whole_elements() const { return elements * cut.parts; }
};

struct BucketGroups {
  Group shard = Group::kSelf;      // Cuts it into shards; kSelf: every rank has all of it.
  Group pieces = Group::kSelf;     // Cuts each shard again into main pieces.
  Group reduce = Group::kSelf;     // Sums its gradients: into shards, or whole where it has none.
  Group replicate = Group::kSelf;  // Sums what those sums are, between the ranks that have the same shard.
  Group slices = Group::kSelf;     // Whose members have other slices of its parameters, each its own bucket.
};

struct BucketTypes {
  DType main = DType::kFp32;  // Main parameters, as the optimizer keeps them.
  bool halves = false;        // Main parameters lie as their bf16, which gathers send or round, and the rest.
  DType moment = DType::kFp32;    // The optimizer's moments.
  DType gathered = DType::kFp32;  // Parameters as they travel and as units read them.
  DType wire = DType::kFp32;      // Gradients as units write them and as they travel.
  DType gradient = DType::kFp32;  // Gradients as they are summed up over micro-batches, in the rank's shard.

  // Parameters between replicas that shard the optimizer, who make one shard of their pieces before it is
  // gathered.
  DType published() const { return gathered == DType::kFp8 ? DType::kBf16 : gathered; }

  // Moments in a checkpoint. Of eight bits bf16 has every number, and everybody can read it.
  DType saved_moment() const { return moment == DType::kFp8 ? DType::kBf16 : moment; }
};

constexpr int64_t kScalesAlignBytes = 256;

// Of a bucket's state: the halves of main parameters that gathers do not send, or a moment.
struct StatePart {
  int moment = -1;     // Which one, from 0; -1: the low halves.
  int64_t offset = 0;  // From the first part's begin, in host memory and on the device; a multiple of 256.
  int64_t bytes = 0;
};

struct Bucket {
  int unit = 0;
  bool trainable = true;
  int64_t choices_begin = -1;  // ParamFacts', of the one selection bias that is all of it.
  Twin twin = Twin::kNone;     // Of all its parameters: another stage has the same bucket.
  std::vector<ParamSlot> params;
  BucketGroups groups;
  BucketTypes types;
  int64_t shards = 1;                     // Members of groups.shard.
  int64_t pieces = 1;                     // Members of groups.pieces.
  int64_t slices = 1;                     // Members of groups.slices.
  int64_t elements = 0;                   // Parameters' own.
  int64_t bucket_elements = 0;            // With padding; shard_elements x shards.
  int64_t shard_elements = 0;             // main_elements x pieces.
  int64_t main_elements = 0;              // What one rank keeps main parameters of.
  int64_t row = 0;                        // Of what is gathered in FP8, the elements of a scale; else 0.
  std::vector<StatePart> offloaded = {};  // What of its state lies in host memory, one after the other.

  bool balances() const { return choices_begin >= 0; }
  // A step changes it, by its gradient or by choices, and so has an Update of it.
  bool changes() const { return trainable || balances(); }
  // Ranks that own a part of it that no other of them has.
  int64_t owners() const { return shards * pieces * slices; }
  // Each rank has all of it, stored in the type that units read: they read it there, and a gather has nothing
  // to do.
  bool read_in_place() const {
    return shards == 1 && pieces == 1 && !in_fp8() && (types.halves || types.gathered == types.main);
  }
  bool in_fp8() const { return types.gathered == DType::kFp8; }
  int64_t scales() const { return in_fp8() ? bucket_elements / row : 0; }
  // Of what is gathered in FP8: where its scales are, in bytes.
  int64_t scales_begin() const {
    return (bucket_elements + kScalesAlignBytes - 1) / kScalesAlignBytes * kScalesAlignBytes;
  }
  int64_t gathered_bytes() const {
    return in_fp8() ? scales_begin() + scales() * BytesOf(DType::kFp32)
                    : bucket_elements * BytesOf(types.gathered);
  }
  int64_t gather_buffer_bytes() const { return read_in_place() ? 0 : gathered_bytes(); }
  int64_t wire_bytes() const { return bucket_elements * BytesOf(types.wire); }
  int64_t published_bytes() const { return shard_elements * BytesOf(types.published()); }
  // With what is between its parts; a multiple of 256.
  int64_t offloaded_bytes() const;
};

struct ParamPlace {
  int bucket = 0;
  int slot = 0;  // Of Bucket::params.
};

struct UnitLayout {
  std::string name;
  std::vector<int> buckets;
  std::vector<ParamPlace> params;  // In the facts' order.
  int borrows = -1;                // As these, UnitFacts'.
  bool backward_reads = true;
  std::vector<UnitExchange> exchanges = {};
};

struct Layout {
  std::vector<Bucket> buckets;  // By unit, in order.
  std::vector<UnitLayout> units;
  StagePlace stage = {};  // As the next, the facts'.
  int64_t choices = 0;

  int64_t elements() const;      // Parameters of these units, whole.
  double padding_ratio() const;  // Padding over parameters.
  // Over which units exchange, each once.
  std::vector<Group> exchanged_groups() const;
};

// Elements [begin, begin + elements) of a bucket.
struct BucketRange {
  int64_t begin = 0;
  int64_t elements = 0;
};

// A shard of the bucket, and a main piece of a shard.
BucketRange ShardRange(const Bucket& bucket, int64_t shard);
BucketRange MainRange(const Bucket& bucket, int64_t shard, int64_t piece);

// What the rank at this place owns. Ranks that the bucket's groups do not tell apart own the same.
BucketRange ShardRange(const Bucket& bucket, const MeshPosition& position);
BucketRange MainRange(const Bucket& bucket, const MeshPosition& position);

// No rank of a lower number owns the same main piece.
bool HasFirstCopy(const Bucket& bucket, const MeshPosition& position);

// A piece of one parameter within a range of its bucket: elements [param_begin, param_begin + elements) of
// the flattened parameter lie at [range_begin, ...) of the range.
struct BucketPiece {
  int slot = 0;
  int64_t param_begin = 0;
  int64_t range_begin = 0;
  int64_t elements = 0;
};

// In order; empty when the range holds padding only.
std::vector<BucketPiece> PiecesOf(const Bucket& bucket, BucketRange range);

// Of every bucket, as the fields of the same names there. Of those whose parameters are not cut, where
// others are cut over the tensor axis, it is WithoutSlices; of those cut over the expert axis, WithExperts.
struct LayoutOptions {
  BucketGroups groups;
  BucketTypes types;
  int64_t shards = 1;
  int64_t pieces = 1;
  int64_t slices = 1;
  Quantum quantum = Quantum::kElement;
  int offloaded_moments = -1;  // Of what is trained; -1: nothing of its state lies in host memory.

  LayoutOptions WithoutSlices() const;
  // REQUIRES: slices is 1, and `parts`, the ranks with experts of their own, divides shards.
  LayoutOptions WithExperts(int64_t parts) const;
  // Cut at rows, whatever the quantum of the others.
  LayoutOptions GatheredInFp8() const;
  // As they are kept, so that what moves by less than a rounding of bf16 moves.
  LayoutOptions GatheredInFp32() const;
};

// Parts of a gradient that came over a narrow wire are added to where sums belong by one kernel of our own,
// in one pass; the squares for the norm too, where no replica adds anything afterwards.
bool SumsInOneKernel(const Spec& spec, const Bucket& bucket);
bool SquaresComeWithSums(const Spec& spec, const Bucket& bucket);

Layout MakeLayout(const ModelFacts& model, const LayoutOptions& options);
LayoutOptions LayoutOptionsOf(const Spec& spec);

}  // namespace fsdpd
