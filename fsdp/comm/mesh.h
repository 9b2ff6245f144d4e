// A mesh whose ranks are connected: for one rank, its communicators by group and role. What the groups are is
// fsdp/plan/mesh; here a group that would repeat another has no communicator of its own.
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

  // The group's, or that of a group with the same members. REQUIRES: there is one, which holds for what
  // instructions name whose group is not kSelf.
  Communicator* Find(Group group, Role role) const;
  // Over all ranks.
  Communicator* all() const { return Find(Group::kWorld, Role::kReduce); }

  void Add(Group group, Role role, std::unique_ptr<Communicator> communicator);

  // Of every communicator; any thread.
  void Abort() const;
  absl::Status Health() const;

 private:
  MeshPosition position_;
  std::array<std::array<std::unique_ptr<Communicator>, kRoles>, kGroups> communicators_;
};

// Blocks until all ranks have called it; errors are MakeCommunicator's. `options` as for the world: rank,
// size, device, address and timeouts; names of groups are made here.
// `exchanged`: the groups over which units exchange (Layout::exchanged_groups).
absl::StatusOr<ConnectedMesh> ConnectMesh(const CommunicatorOptions& options, const Mesh& mesh,
                                          const std::vector<Group>& exchanged, Store* store);

// Ranks as threads of one process: the mesh of each.
std::vector<ConnectedMesh> MakeLocalMesh(const Mesh& mesh, const std::vector<Group>& exchanged = {});

}  // namespace fsdpd
