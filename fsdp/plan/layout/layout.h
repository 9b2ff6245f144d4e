// Sharding layout: the buckets of each unit, and the owner of every element. Computed identically on every
// rank; offsets are never exchanged.
//
// Buckets. The parameters of a unit are grouped into buckets by what must not be mixed in one collective or
// update: trainable, frozen, and selection-bias parameters are separate. With LoRA adapters, the frozen ones
// are stored as they are gathered, without an fp32 copy. The parameters of a bucket are
// contiguous, the bucket is split into equal shards, and shard i belongs to the ranks with index i in the
// bucket's shard group. Therefore a gather runs in place on equal shards, and a gathered parameter is
// contiguous. A shard boundary may fall at any element of a parameter. A shard may hold no element of a small
// parameter; an empty part is normal.
//
// Alignment. Every parameter starts on a 256-byte boundary in compute precision, every main shard on a
// 16-byte boundary, for vector loads and NCCL's fast path. Padding is zero and stays zero.
//
// Groups. Each bucket names the group that shards it and the group that sums its gradients. With tensor
// parallelism (tensor_partition.h), sharded matrices are in buckets that are sharded and reduced among the
// ranks with the same tensor-parallel shard. Parameters that every tensor-parallel rank holds whole (norms)
// are in their own buckets, sharded and reduced over the whole replica: their gradient contributions are
// summed, and each has one owner per replica. With expert parallelism, experts are in their own buckets,
// sharded and reduced among the ranks with the same experts; their gradient then covers all tokens, whatever
// rank they came from. Frozen matrices in NF4 are in their own buckets, and a block is never split. FP8
// matrices with one scale per row are in their own buckets, one per row length. A row is never split, so
// padding is larger if rows do not divide evenly (8B over 768 ranks: 3.8%). The scales of such a bucket
// follow its numbers, and each scale belongs to one owner. If replicas shard optimizer state (HFSDP), each
// shard is split again into equal main pieces; replica o owns piece o.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/kernels/nf4/nf4_format.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

struct ParamSlot {
  int param = 0;  // Index in UnitFacts::params.
  std::string name;
  std::vector<int64_t> shape;
  double weight_decay = 0;
  double lr_scale = 1;
  int64_t offset = 0;  // Elements from the bucket's start.
  int64_t elements = 0;
  // Shape and elements are those of the tensor-parallel (or expert-parallel) shard.
  TensorPartition partition = {};
  std::optional<std::string> owner = {};  // ParamFacts::owner.

  int64_t full_elements() const { return elements * partition.parts; }
};

struct BucketGroups {
  Group shard = Group::kSelf;   // Shards the bucket; kSelf: every rank holds all of it.
  Group pieces = Group::kSelf;  // Splits each shard into main pieces (HFSDP).
  // Reduces gradients: reduce-scatter into shards, or all-reduce if it is not sharded.
  Group reduce = Group::kSelf;
  Group replicate = Group::kSelf;  // Reduces the results again, between ranks with the same shard.
  // Members hold different tensor-parallel or expert-parallel shards; each has its own bucket.
  Group slices = Group::kSelf;
};

struct BucketTypes {
  DType main = DType::kFp32;  // Main parameters, as the optimizer stores them.
  // Split fp32: main parameters are stored as bf16 (which gathers send, or round) plus the low 16 bits.
  bool split_fp32 = false;
  DType moment = DType::kFp32;     // Optimizer moments.
  DType gathered = DType::kFp32;   // Parameters as they are gathered and as units read them.
  DType grad_comm = DType::kFp32;  // Gradients as units write them and as they are communicated.
  DType gradient = DType::kFp32;   // Gradients accumulated over micro-batches, in the rank's shard.

  // Type of the replica all-gather (HFSDP): replicas assemble a shard from their pieces before the shard is
  // gathered.
  DType replica() const { return gathered == DType::kFp8 ? DType::kBf16 : gathered; }

  // Type of moments in a checkpoint. bf16 represents every fp8 moment exactly, and other tools can read it.
  DType saved_moment() const { return moment == DType::kFp8 ? DType::kBf16 : moment; }
};

constexpr int64_t kScalesAlignBytes = 256;

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A part of a bucket's offloaded state: the low 16 bits of split fp32 main parameters, or one moment.
struct StatePart {
  int moment = -1;  // Index of the moment; -1: the low 16 bits.
  // Bytes from the start of the bucket's state, in host memory and on the device; a multiple of 256.
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct Bucket {
  int unit = 0;
  bool trainable = true;
  bool of_base = false;        // Frozen weights of a model with LoRA adapters: not part of checkpoints.
  int64_t choices_begin = -1;  // ParamFacts::choices_begin, if the bucket is a selection bias; else -1.
  // For all of its parameters: another stage holds a replica of the bucket (tied embeddings).
  TiedReplica tied_replica = TiedReplica::kNone;
  std::vector<ParamSlot> params;
  BucketGroups groups;
  BucketTypes types;
  int64_t shards = 1;           // Members of groups.shard.
  int64_t pieces = 1;           // Members of groups.pieces.
  int64_t slices = 1;           // Members of groups.slices.
  int64_t elements = 0;         // Elements of its parameters.
  int64_t bucket_elements = 0;  // With padding: shard_elements x shards.
  int64_t shard_elements = 0;   // main_elements x pieces.
  int64_t main_elements = 0;    // Main parameters on one rank.
  int64_t row = 0;              // Elements per scale if gathered in FP8; else 0.
  bool in_nf4 = false;          // Stored in NF4, and gathered in it if sharded; units read types.gathered.
  std::vector<StatePart> offloaded = {};  // State in host memory, contiguous.

  bool is_selection_bias() const { return choices_begin >= 0; }
  // A step changes it, by gradient or by expert choices, so the program has an Update of it.
  bool is_updated() const { return trainable || is_selection_bias(); }
  // Number of ranks that own a distinct part.
  int64_t owners() const { return shards * pieces * slices; }
  // Every rank stores all of it in the type that units read. Units read it in place, and Gather does nothing.
  bool read_in_place() const {
    return shards == 1 && pieces == 1 && !in_fp8() && !in_nf4 &&
           (types.split_fp32 || types.gathered == types.main);
  }
  bool in_fp8() const { return types.gathered == DType::kFp8; }
  int64_t scales() const { return in_fp8() ? bucket_elements / row : 0; }
  // If gathered in FP8: offset of the scales in bytes.
  int64_t scales_begin() const { return RoundUp(bucket_elements, kScalesAlignBytes); }
  // Of main parameters on one rank; of split fp32 both halves.
  int64_t main_bytes() const {
    return in_nf4 ? Nf4Bytes(main_elements) : main_elements * BytesOf(types.main);
  }
  // What ranks send each other, for all of the bucket.
  int64_t wire_bytes() const {
    if (in_nf4) return Nf4Bytes(bucket_elements);
    return in_fp8() ? scales_begin() + scales() * BytesOf(DType::kFp32)
                    : bucket_elements * BytesOf(types.gathered);
  }
  // With NF4: the numbers as units read them; then, if the bucket is sharded, those that were sent.
  int64_t gathered_bytes() const {
    if (!in_nf4) return wire_bytes();
    return bucket_elements * BytesOf(types.gathered) + (shards > 1 ? wire_bytes() : 0);
  }
  int64_t gather_buffer_bytes() const { return read_in_place() ? 0 : gathered_bytes(); }
  int64_t grad_comm_bytes() const { return bucket_elements * BytesOf(types.grad_comm); }
  int64_t replica_bytes() const { return shard_elements * BytesOf(types.replica()); }
  // Including alignment between parts; a multiple of 256.
  int64_t offloaded_bytes() const;
};

struct ParamPlace {
  int bucket = 0;
  int slot = 0;  // Index in Bucket::params.
};

struct UnitLayout {
  std::string name;
  std::vector<int> buckets;
  std::vector<ParamPlace> params;  // In the order of UnitFacts::params.
  int borrows = -1;                // Copied from UnitFacts, like the next two.
  bool backward_reads = true;
  std::vector<UnitExchange> exchanges = {};
};

struct Layout {
  std::vector<Bucket> buckets;  // By unit, in order.
  std::vector<UnitLayout> units;
  StagePlace stage = {};  // Copied from ModelFacts, like `choices`.
  int64_t choices = 0;

  int64_t elements() const;      // Parameters of these units, unsharded.
  double padding_ratio() const;  // Padding over parameters.
  // Groups over which units exchange data, each once.
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

// The range that this rank owns. Ranks with the same index in the bucket's groups own the same range.
BucketRange ShardRange(const Bucket& bucket, const MeshPosition& position);
BucketRange MainRange(const Bucket& bucket, const MeshPosition& position);

// This rank is the lowest-numbered owner of its main piece.
bool HasFirstCopy(const Bucket& bucket, const MeshPosition& position);

// A contiguous piece of one parameter within a bucket range: elements [param_begin, param_begin + elements)
// of the flattened parameter are at [range_begin, range_begin + elements) of the range.
struct BucketPiece {
  int slot = 0;
  int64_t param_begin = 0;
  int64_t range_begin = 0;
  int64_t elements = 0;
};

// In order; empty if the range holds only padding.
std::vector<BucketPiece> PiecesOf(const Bucket& bucket, BucketRange range);

// Options for buckets; the fields are those of Bucket. WithoutTensorParallel() gives the options for
// parameters that tensor parallelism does not shard, WithExperts() those for experts under expert
// parallelism.
struct LayoutOptions {
  BucketGroups groups;
  BucketTypes types;
  int64_t shards = 1;
  int64_t pieces = 1;
  int64_t slices = 1;
  int offloaded_moments = -1;  // Offloaded moments of trainable buckets; -1: state stays on the device.
  bool lora = false;           // Frozen buckets are of the base model.

  LayoutOptions WithoutTensorParallel() const;
  // REQUIRES: slices is 1, and `parts` (the expert-parallel degree) divides shards.
  LayoutOptions WithExperts(int64_t parts) const;
  LayoutOptions GatheredInFp8() const;
  // Gathered in fp32, so that updates smaller than a bf16 rounding step take effect.
  LayoutOptions GatheredInFp32() const;
};

// Whether one fused kernel sums the received parts of a gradient (communicated in less than fp32) into the
// accumulator; and whether the same kernel also computes the squares for the norm, which requires that no
// replica adds to the sum later.
bool SumsInOneKernel(const Spec& spec, const Bucket& bucket);
bool SquaresComeWithSums(const Spec& spec, const Bucket& bucket);

Layout MakeLayout(const ModelFacts& model, const LayoutOptions& options);
LayoutOptions LayoutOptionsOf(const Spec& spec);

}  // namespace fsdpd
