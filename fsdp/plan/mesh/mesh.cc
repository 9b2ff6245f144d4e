#include "fsdp/plan/mesh/mesh.h"

#include "base/check.h"

namespace fsdpd {
bool Has(Group group, Axis axis) {
  constexpr auto kBit = [](Axis of) { return 1u << static_cast<unsigned>(of); };
  constexpr unsigned kPipeline = kBit(Axis::kPipeline), kReplicate = kBit(Axis::kReplicate),
                     kShard = kBit(Axis::kShard), kExpert = kBit(Axis::kExpert),
                     kContext = kBit(Axis::kContext), kTensor = kBit(Axis::kTensor);
  constexpr unsigned kAxesOf[kGroups] = {0,
                                         kShard | kExpert | kContext,
                                         kReplicate,
                                         kContext,
                                         kTensor,
                                         kExpert,
                                         kShard | kContext,
                                         kPipeline | kContext | kTensor,
                                         kShard | kExpert | kContext | kTensor,
                                         kPipeline,
                                         ~0u};
  return (kAxesOf[static_cast<size_t>(group)] & kBit(axis)) != 0;
}

const char* NameOf(Axis axis) {
  constexpr const char* kNames[kAxes] = {"pipeline", "replicate", "shard", "expert", "context", "tensor"};
  return kNames[static_cast<size_t>(axis)];
}

const char* NameOf(Group group) {
  constexpr const char* kNames[kGroups] = {"self",    "shard",    "replicate",    "context",
                                           "tensor",  "expert",   "expert_shard", "sample",
                                           "replica", "pipeline", "world"};
  return kNames[static_cast<size_t>(group)];
}

const char* NameOf(Role role) {
  constexpr const char* kNames[kRoles] = {"gather", "reduce", "outer", "unit", "stage"};
  return kNames[static_cast<size_t>(role)];
}

Mesh Mesh::DataParallel(int64_t replicate, int64_t shard) {
  FSDPD_CHECK(replicate > 0 && shard > 0);
  Mesh mesh;
  mesh.sizes_[static_cast<size_t>(Axis::kReplicate)] = replicate;
  mesh.sizes_[static_cast<size_t>(Axis::kShard)] = shard;
  return mesh;
}

Mesh Mesh::With(Axis axis, int64_t size) const {
  FSDPD_CHECK(size > 0 && axis != Axis::kShard);
  Mesh mesh = *this;
  mesh.sizes_[static_cast<size_t>(axis)] = size;
  int64_t& shard = mesh.sizes_[static_cast<size_t>(Axis::kShard)];
  shard = 1;
  FSDPD_CHECK(world() % mesh.world() == 0);
  shard = world() / mesh.world();
  return mesh;
}

int64_t Mesh::world() const { return SizeOf(Group::kWorld); }

int64_t Mesh::SizeOf(Group group) const {
  int64_t size = 1;
  for (int a = 0; a < kAxes; ++a) {
    if (Has(group, static_cast<Axis>(a))) size *= sizes_[a];
  }
  return size;
}

int64_t Mesh::NumberAlong(Group group, bool within, int64_t rank) const {
  FSDPD_CHECK(rank >= 0 && rank < world());
  int64_t number = 0, stride = 1;
  for (int a = kAxes - 1; a >= 0; --a) {  // The innermost axis varies fastest.
    if (Has(group, static_cast<Axis>(a)) == within) {
      number += rank % sizes_[a] * stride;
      stride *= sizes_[a];
    }
    rank /= sizes_[a];
  }
  return number;
}

int64_t Mesh::IndexAlong(Axis axis, int64_t rank) const {
  FSDPD_CHECK(rank >= 0 && rank < world());
  for (int a = kAxes - 1; a > static_cast<int>(axis); --a) rank /= sizes_[a];
  return rank % size(axis);
}

int64_t Mesh::IndexIn(Group group, int64_t rank) const { return NumberAlong(group, /*within=*/true, rank); }

int64_t Mesh::NumberOf(Group group, int64_t rank) const { return NumberAlong(group, /*within=*/false, rank); }

int64_t Mesh::SpanOf(Group group) const {
  int64_t span = 1, inner = 1;
  for (int a = kAxes - 1; a >= 0; --a) {
    inner *= sizes_[a];
    if (sizes_[a] > 1 && Has(group, static_cast<Axis>(a))) span = inner;
  }
  return span;
}

bool Mesh::SameMembers(Group a, Group b) const {
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (sizes_[i] > 1 && Has(a, axis) != Has(b, axis)) return false;
  }
  return true;
}

}  // namespace fsdpd
