#include "fsdp/comm/mesh.h"

#include <absl/strings/str_format.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "fsdp/comm/local_communicator.h"

namespace fsdpd {
namespace {

// One of the groups that a rank is in: `name` is alike for its members and for nobody else.
absl::StatusOr<std::unique_ptr<Communicator>> Connect(CommunicatorOptions options, std::string name, int rank,
                                                      int size, Store* store) {
  options.name = std::move(name);
  options.rank = rank;
  options.size = size;
  return MakeCommunicator(options, store);
}

// In one order on all ranks: a rank that waits for its peers in one group would otherwise keep those of
// another.
absl::Status ConnectGroups(const CommunicatorOptions& options, int outer_size, Store* store, Mesh* mesh) {
  const MeshPosition at = PositionOf(options.rank, options.size, outer_size);
  const auto inner = [&](const char* name) {
    return Connect(options, absl::StrFormat("%s/%d", name, at.outer_index), at.inner_index, at.inner_size,
                   store);
  };
  mesh->position = at;
  FSDPD_ASSIGN_OR_RETURN(mesh->gather, inner("gather"));
  FSDPD_ASSIGN_OR_RETURN(mesh->reduce, inner("reduce"));
  if (outer_size == 1) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(mesh->outer, Connect(options, absl::StrFormat("outer/%d", at.inner_index),
                                              at.outer_index, at.outer_size, store));
  FSDPD_ASSIGN_OR_RETURN(mesh->world, Connect(options, "world", options.rank, options.size, store));
  return absl::OkStatus();
}

}  // namespace

MeshPosition PositionOf(int rank, int world, int outer_size) {
  FSDPD_CHECK(outer_size > 0 && world > 0 && world % outer_size == 0);
  FSDPD_CHECK(rank >= 0 && rank < world);
  const int inner_size = world / outer_size;
  return {rank % inner_size, inner_size, rank / inner_size, outer_size};
}

void Mesh::Abort() const {
  for (Communicator* group : groups()) {
    if (group != nullptr) group->Abort();
  }
}

absl::Status Mesh::Health() const {
  absl::Status status;
  for (const Communicator* group : groups()) {
    if (group != nullptr) status.Update(group->Health());
  }
  return status;
}

// Not one of the groups that are destroyed with the mesh may wait for ranks that did not come to the next.
absl::StatusOr<Mesh> ConnectMesh(const CommunicatorOptions& options, int outer_size, Store* store) {
  Mesh mesh;
  const absl::Status status = ConnectGroups(options, outer_size, store, &mesh);
  if (status.ok()) return mesh;
  mesh.Abort();
  return status;
}

std::vector<Mesh> MakeLocalMesh(int world, int outer_size) {
  std::vector<Mesh> ranks(world);
  for (int rank = 0; rank < world; ++rank) ranks[rank].position = PositionOf(rank, world, outer_size);
  const int inner_size = world / outer_size;
  for (int outer = 0; outer < outer_size; ++outer) {
    auto gather = MakeLocalGroup(inner_size), reduce = MakeLocalGroup(inner_size);
    for (int inner = 0; inner < inner_size; ++inner) {
      Mesh& rank = ranks[outer * inner_size + inner];
      rank.gather = std::move(gather[inner]);
      rank.reduce = std::move(reduce[inner]);
    }
  }
  if (outer_size == 1) return ranks;
  for (int inner = 0; inner < inner_size; ++inner) {
    auto replicas = MakeLocalGroup(outer_size);
    for (int outer = 0; outer < outer_size; ++outer) {
      ranks[outer * inner_size + inner].outer = std::move(replicas[outer]);
    }
  }
  auto all = MakeLocalGroup(world);
  for (int rank = 0; rank < world; ++rank) ranks[rank].world = std::move(all[rank]);
  return ranks;
}

}  // namespace fsdpd
