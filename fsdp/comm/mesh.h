// The groups that a rank communicates in: `gather` and `reduce` over its shard group (the inner axis),
// `outer` over the ranks that hold the same shard in other groups, `world` over all. A group that would
// repeat another does not exist: without an outer axis there is neither `outer` nor `world`, and all() is
// `reduce`.
//
// rank = outer index x inner size + inner index: shard groups are neighbours, which share a node first.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

struct MeshPosition {
  int inner_index = 0;
  int inner_size = 1;
  int outer_index = 0;
  int outer_size = 1;
};
MeshPosition PositionOf(int rank, int world, int outer_size);

struct Mesh {
  MeshPosition position;
  std::unique_ptr<Communicator> gather;
  std::unique_ptr<Communicator> reduce;
  std::unique_ptr<Communicator> outer;  // Null without an outer axis, as is `world`.
  std::unique_ptr<Communicator> world;

  Communicator* all() const { return world == nullptr ? reduce.get() : world.get(); }
  // Of every communicator; any thread.
  void Abort() const;
  absl::Status Health() const;

 private:
  std::array<Communicator*, 4> groups() const {
    return {gather.get(), reduce.get(), outer.get(), world.get()};
  }
};

// Blocks until all ranks have called it; errors are MakeCommunicator's. `options` as for the world: rank,
// size, device, address and timeouts; names of groups are made here.
absl::StatusOr<Mesh> ConnectMesh(const CommunicatorOptions& options, int outer_size, Store* store);

// Ranks as threads of one process: the mesh of each.
std::vector<Mesh> MakeLocalMesh(int world, int outer_size);

}  // namespace fsdpd
