// ConnectedMesh: the communicators of one rank, by group and role. fsdp/plan/mesh defines the groups; groups
// with the same members share a communicator.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/plan/mesh/mesh.h"

namespace fsdpd {

class ConnectedMesh {
 public:
  ConnectedMesh() = default;
  explicit ConnectedMesh(MeshPosition position) : position_(position) {}

  const MeshPosition& position() const { return position_; }

  // The communicator of the group, or of one with the same members. REQUIRES: it exists, which holds for
  // instructions whose group is not kSelf.
  Communicator* Find(Group group, Role role) const;
  // Over all ranks.
  Communicator* all() const { return Find(Group::kWorld, Role::kReduce); }

  void Add(Group group, Role role, std::unique_ptr<Communicator> communicator);

  // Aborts every communicator; any thread.
  void Abort() const;
  absl::Status Health() const;

 private:
  MeshPosition position_;
  std::array<std::array<std::unique_ptr<Communicator>, kRoles>, kGroups> communicators_;
};

// Blocks until all ranks have called it; errors are those of MakeCommunicator. `options`: those of the world
// (rank, size, device, address, timeouts); names of groups are set here. `exchanged`: groups that units
// communicate over (Layout::exchanged_groups).
absl::StatusOr<ConnectedMesh> ConnectMesh(const CommunicatorOptions& options, const Mesh& mesh,
                                          const std::vector<Group>& exchanged, Store* store);

// Meshes of ranks that are threads of one process.
std::vector<ConnectedMesh> MakeLocalMesh(const Mesh& mesh, const std::vector<Group>& exchanged = {});

}  // namespace fsdpd
