#include "fsdp/plan/mesh/mesh.h"

#include "base/check.h"

namespace fsdpd {
bool Has(Group group, Axis axis) {
  switch (group) {
    case Group::kSelf:
      return false;
    case Group::kShard:
      return axis == Axis::kShard || axis == Axis::kExpert || axis == Axis::kContext;
    case Group::kReplicate:
      return axis == Axis::kReplicate;
    case Group::kContext:
      return axis == Axis::kContext;
    case Group::kTensor:
      return axis == Axis::kTensor;
    case Group::kExpert:
      return axis == Axis::kExpert;
    case Group::kExpertShard:
      return axis == Axis::kShard || axis == Axis::kContext;
    case Group::kSample:
      return axis == Axis::kPipeline || axis == Axis::kContext || axis == Axis::kTensor;
    case Group::kReplica:
      return axis != Axis::kReplicate && axis != Axis::kPipeline;
    case Group::kPipeline:
      return axis == Axis::kPipeline;
    case Group::kWorld:
      return true;
  }
  return false;
}

const char* NameOf(Axis axis) {
  switch (axis) {
    case Axis::kPipeline:
      return "pipeline";
    case Axis::kReplicate:
      return "replicate";
    case Axis::kShard:
      return "shard";
    case Axis::kExpert:
      return "expert";
    case Axis::kContext:
      return "context";
    case Axis::kTensor:
      return "tensor";
  }
  return "?";
}

const char* NameOf(Group group) {
  switch (group) {
    case Group::kSelf:
      return "self";
    case Group::kShard:
      return "shard";
    case Group::kReplicate:
      return "replicate";
    case Group::kContext:
      return "context";
    case Group::kTensor:
      return "tensor";
    case Group::kExpert:
      return "expert";
    case Group::kExpertShard:
      return "expert_shard";
    case Group::kSample:
      return "sample";
    case Group::kReplica:
      return "replica";
    case Group::kPipeline:
      return "pipeline";
    case Group::kWorld:
      return "world";
  }
  return "?";
}

const char* NameOf(Role role) {
  switch (role) {
    case Role::kGather:
      return "gather";
    case Role::kReduce:
      return "reduce";
    case Role::kOuter:
      return "outer";
    case Role::kUnit:
      return "unit";
    case Role::kStage:
      return "stage";
  }
  return "?";
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
