// How a job's ranks lie: named axes from the outermost to the innermost, and the groups that they form. Ranks
// that are neighbours in the innermost axis are neighbours in number, and so share a node first.
//
// Pure: who is in a group with whom, not how they talk (fsdp/comm/mesh.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fsdpd {

enum class Axis {
  kPipeline,   // Ranks along it have other units of the model, its stages, and work on the same samples.
  kReplicate,  // Ranks along it hold the same shards, and may cut the optimizer's state again.
  kShard,      // Ranks along it hold shards of a bucket, and read samples of their own.
  kExpert,     // The same, but of a layer's experts each has some, whole or in shards.
  kContext,    // The same, but each has a part of one sample's tokens (sequence_partition.h).
  kTensor,     // Ranks along it hold slices of each matrix, and work on the same tokens (tensor_partition.h).
};
constexpr int kAxes = 6;
const char* NameOf(Axis axis);

// Ranks that differ in a group's axes alone are one group of it.
enum class Group {
  kSelf,         // No axis: each rank alone.
  kShard,        // Who holds the shards of a slice of the model: the shard, the expert and the context axis.
  kReplicate,    // The replicate axis.
  kContext,      // Who has parts of a sample's tokens: the context axis.
  kTensor,       // Who has slices of each matrix: the tensor axis.
  kExpert,       // Who has a layer's experts among them: the expert axis.
  kExpertShard,  // Who holds the shards of the same experts: the shard and the context axis.
  kSample,       // Who works on one sample: the pipeline, the context and the tensor axis.
  kReplica,      // Who holds one replica of a stage: all axes but replicate and pipeline.
  kPipeline,     // Who has the stages of a model: the pipeline axis.
  kWorld,        // All axes.
};
constexpr int kGroups = 11;
const char* NameOf(Group group);
bool Has(Group group, Axis axis);

// What a group's members do together. A communicator serialises its operations, so those that run beside each
// other have one each.
enum class Role {
  kGather,  // Parameters on their way to compute.
  kReduce,  // Gradients on their way back, norms and losses.
  kOuter,   // Both, between replicas.
  kUnit,    // What units exchange among themselves, within an instruction.
  kStage,   // Hidden states and their gradients, from one stage to the next or back.
};
constexpr int kRoles = 5;
const char* NameOf(Role role);

class Mesh {
 public:
  Mesh() { sizes_.fill(1); }

  // REQUIRES: all sizes are 1 or more.
  static Mesh DataParallel(int64_t replicate, int64_t shard);
  // The same ranks, of which the shard axis gives those that the other needs. REQUIRES: the sizes of all
  // of these axes together divide world().
  Mesh WithPipeline(int64_t pipeline) const { return With(Axis::kPipeline, pipeline); }
  Mesh WithReplicas(int64_t replicate) const { return With(Axis::kReplicate, replicate); }
  Mesh WithExpert(int64_t expert) const { return With(Axis::kExpert, expert); }
  Mesh WithContext(int64_t context) const { return With(Axis::kContext, context); }
  Mesh WithTensor(int64_t tensor) const { return With(Axis::kTensor, tensor); }

  int64_t size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int64_t world() const;
  // Groups of ranks that read samples of their own, and which of them a rank is in.
  int64_t data_ranks() const { return world() / SizeOf(Group::kSample); }
  int64_t DataRank(int64_t rank) const { return NumberOf(Group::kSample, rank); }

  int64_t SizeOf(Group group) const;
  // The rank's number along one axis.
  int64_t IndexAlong(Axis axis, int64_t rank) const;
  // The rank's number within its group, by axis from the outermost.
  int64_t IndexIn(Group group, int64_t rank) const;
  // Which of the mesh's groups of this kind the rank is in: alike for members, and for nobody else.
  int64_t NumberOf(Group group, int64_t rank) const;
  // From the first of a group's members to behind the last, in number: their neighbourhood.
  int64_t SpanOf(Group group) const;
  // Both have the same members, whoever's they are.
  bool SameMembers(Group a, Group b) const;

  bool operator==(const Mesh& other) const { return sizes_ == other.sizes_; }

 private:
  Mesh With(Axis axis, int64_t size) const;
  // The rank's number along the axes that are (`within`) or are not the group's.
  int64_t NumberAlong(Group group, bool within, int64_t rank) const;

  std::array<int64_t, kAxes> sizes_;
};

// One rank's place.
struct MeshPosition {
  Mesh mesh;
  int64_t rank = 0;

  int64_t IndexIn(Group group) const { return mesh.IndexIn(group, rank); }
  int64_t SizeOf(Group group) const { return mesh.SizeOf(group); }
};

}  // namespace fsdpd
