// Device mesh: the named parallelism axes of a job, from outermost to innermost, and the process groups that
// they form. Ranks adjacent in the innermost axis have consecutive numbers, so they share a node first.
//
// Pure: describes group membership, not communication (fsdp/comm/connected_mesh.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fsdpd {

enum class Axis {
  kPipeline,   // Pipeline parallel: ranks hold different stages and work on the same samples.
  kReplicate,  // Data parallel: ranks hold the same shards; they may shard optimizer state further (HFSDP).
  kShard,      // Fully sharded data parallel: ranks hold shards of each bucket and read their own samples.
  kExpert,     // Expert parallel: like kShard, but each rank holds a subset of a layer's experts.
  // Context parallel: like kShard, but each sample is sharded over the ranks (sequence_partition.h).
  kContext,
  // Tensor parallel: ranks hold a shard of each matrix and work on the same tokens (tensor_partition.h).
  kTensor,
};
constexpr int kAxes = 6;
const char* NameOf(Axis axis);

// Process groups: ranks whose positions differ only in the group's axes are in the same group.
enum class Group {
  kSelf,         // No axis: a group of one rank.
  kShard,        // Ranks that shard the same parameters: the shard, expert and context axes.
  kReplicate,    // Replicas: the replicate axis.
  kContext,      // Context parallel: the context axis.
  kTensor,       // Tensor parallel: the tensor axis.
  kExpert,       // Expert parallel: the expert axis.
  kExpertShard,  // Ranks that shard the same experts: the shard and context axes.
  kSample,       // Ranks that work on the same sample: the pipeline, context and tensor axes.
  kReplica,      // One replica of a stage: all axes except replicate and pipeline.
  kPipeline,     // Pipeline parallel: the pipeline axis.
  kWorld,        // All axes.
};
constexpr int kGroups = 11;
const char* NameOf(Group group);
bool Has(Group group, Axis axis);

// Purpose of a communicator. A communicator serializes its operations, so operations that run concurrently
// have one communicator each.
enum class Role {
  kGather,  // Parameter all-gather.
  kReduce,  // Gradient reduction, gradient norm, loss.
  kOuter,   // Parameters and gradients between replicas.
  kUnit,    // Exchanges inside a unit's forward or backward.
  kStage,   // Hidden states and their gradients between pipeline stages.
};
constexpr int kRoles = 5;
const char* NameOf(Role role);

class Mesh {
 public:
  Mesh() { sizes_.fill(1); }

  // REQUIRES: all sizes are 1 or more.
  static Mesh DataParallel(int64_t replicate, int64_t shard);
  // The same world size with one axis resized; the shard axis shrinks to make up for it. REQUIRES: the
  // product of all these axes divides world().
  Mesh WithPipeline(int64_t pipeline) const { return With(Axis::kPipeline, pipeline); }
  Mesh WithReplicas(int64_t replicate) const { return With(Axis::kReplicate, replicate); }
  Mesh WithExpert(int64_t expert) const { return With(Axis::kExpert, expert); }
  Mesh WithContext(int64_t context) const { return With(Axis::kContext, context); }
  Mesh WithTensor(int64_t tensor) const { return With(Axis::kTensor, tensor); }

  int64_t size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int64_t world() const;
  // Number of data-parallel groups (each reads its own samples), and the group of a rank.
  int64_t data_ranks() const { return world() / SizeOf(Group::kSample); }
  int64_t DataRank(int64_t rank) const { return NumberOf(Group::kSample, rank); }

  int64_t SizeOf(Group group) const;
  // The rank's index along one axis.
  int64_t IndexAlong(Axis axis, int64_t rank) const;
  // The rank's index within its group; axes are ordered from the outermost.
  int64_t IndexIn(Group group, int64_t rank) const;
  // Index of the rank's group among all groups of this kind: equal for members only.
  int64_t NumberOf(Group group, int64_t rank) const;
  // Range of rank numbers that a group covers: last member - first member + 1.
  int64_t SpanOf(Group group) const;
  // The two kinds of group have the same members, for every rank.
  bool SameMembers(Group a, Group b) const;

  bool operator==(const Mesh& other) const { return sizes_ == other.sizes_; }

 private:
  Mesh With(Axis axis, int64_t size) const;
  // The rank's index along the axes that belong (`within`) or do not belong to the group.
  int64_t NumberAlong(Group group, bool within, int64_t rank) const;

  std::array<int64_t, kAxes> sizes_;
};

// One rank's position in the mesh.
struct MeshPosition {
  Mesh mesh;
  int64_t rank = 0;

  int64_t IndexIn(Group group) const { return mesh.IndexIn(group, rank); }
  int64_t SizeOf(Group group) const { return mesh.SizeOf(group); }
};

}  // namespace fsdpd
