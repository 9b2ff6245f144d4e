#include "fsdp/comm/connected_mesh.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "fsdp/comm/local_communicator.h"
#include "fsdp/comm/make_communicator.h"
#include "fsdp/comm/neighbors.h"

namespace fsdpd {
namespace {

struct Link {
  Group group;
  Role role;
};

// The communicators of a rank, in the same order on all ranks: otherwise ranks could wait for each other in
// different groups.
std::vector<Link> LinksOf(const Mesh& mesh, const std::vector<Group>& exchanged) {
  std::vector<Link> links = {{Group::kShard, Role::kGather}, {Group::kShard, Role::kReduce}};
  if (mesh.SizeOf(Group::kTensor) > 1) {  // For parameters that tensor parallelism replicates.
    links.push_back({Group::kReplica, Role::kGather});
    links.push_back({Group::kReplica, Role::kReduce});
  }
  if (mesh.SizeOf(Group::kExpert) > 1) {  // For experts.
    links.push_back({Group::kExpertShard, Role::kGather});
    links.push_back({Group::kExpertShard, Role::kReduce});
  }
  if (mesh.SizeOf(Group::kReplicate) > 1) links.push_back({Group::kReplicate, Role::kOuter});
  if (mesh.SizeOf(Group::kPipeline) > 1) links.push_back({Group::kPipeline, Role::kStage});
  if (mesh.SizeOf(Group::kReplicate) > 1 || mesh.SizeOf(Group::kPipeline) > 1)
    links.push_back({Group::kWorld, Role::kReduce});
  for (size_t i = 0; i < exchanged.size(); ++i) {
    const auto same = [&](Group earlier) { return mesh.SameMembers(earlier, exchanged[i]); };
    const bool known = std::any_of(exchanged.begin(), exchanged.begin() + static_cast<int64_t>(i), same);
    if (!known && mesh.SizeOf(exchanged[i]) > 1) links.push_back({exchanged[i], Role::kUnit});
  }
  return links;
}

absl::Status ConnectLinks(const CommunicatorOptions& world, const std::vector<Group>& exchanged, Store* store,
                          ConnectedMesh* mesh) {
  const MeshPosition& at = mesh->position();
  for (const Link& link : LinksOf(at.mesh, exchanged)) {
    CommunicatorOptions options = world;
    // The same for all members of the group, and for no other rank.
    options.name = absl::StrFormat("%s/%s/%d", NameOf(link.group), NameOf(link.role),
                                   at.mesh.NumberOf(link.group, at.rank));
    options.rank = static_cast<int>(at.IndexIn(link.group));
    options.size = static_cast<int>(at.SizeOf(link.group));
    const auto make = [store](const CommunicatorOptions& of) { return MakeCommunicator(of, store); };
    const bool by_pairs = link.role == Role::kStage && options.device == DeviceKind::kCuda;
    FSDPD_ASSIGN_OR_RETURN(auto communicator, by_pairs ? Neighbors::Make(options, make) : make(options));
    mesh->Add(link.group, link.role, std::move(communicator));
  }
  return absl::OkStatus();
}

}  // namespace

Communicator* ConnectedMesh::Find(Group group, Role role) const {
  const auto of = [&](Group g) {
    return communicators_[static_cast<size_t>(g)][static_cast<size_t>(role)].get();
  };
  if (Communicator* own = of(group)) return own;
  for (int g = 0; g < kGroups; ++g) {
    Communicator* other = of(static_cast<Group>(g));
    if (other != nullptr && position_.mesh.SameMembers(group, static_cast<Group>(g))) return other;
  }
  FSDPD_CHECK(false);
  return nullptr;
}

void ConnectedMesh::Add(Group group, Role role, std::unique_ptr<Communicator> communicator) {
  communicators_[static_cast<size_t>(group)][static_cast<size_t>(role)] = std::move(communicator);
}

void ConnectedMesh::Abort() const {
  for (const auto& of_group : communicators_) {
    for (const std::unique_ptr<Communicator>& communicator : of_group) {
      if (communicator != nullptr) communicator->Abort();
    }
  }
}

absl::Status ConnectedMesh::Health() const {
  absl::Status status;
  for (const auto& of_group : communicators_) {
    for (const std::unique_ptr<Communicator>& communicator : of_group) {
      if (communicator != nullptr) status.Update(communicator->Health());
    }
  }
  return status;
}

// On failure, aborts: destroying a connected group must not wait for ranks that failed to join the next one.
absl::StatusOr<ConnectedMesh> ConnectMesh(const CommunicatorOptions& options, const Mesh& mesh,
                                          const std::vector<Group>& exchanged, Store* store) {
  FSDPD_CHECK(options.size == mesh.world());
  ConnectedMesh connected(MeshPosition{mesh, options.rank});
  const absl::Status status = ConnectLinks(options, exchanged, store, &connected);
  if (status.ok()) return connected;
  connected.Abort();
  return status;
}

std::vector<ConnectedMesh> MakeLocalMesh(const Mesh& mesh, const std::vector<Group>& exchanged) {
  std::vector<ConnectedMesh> ranks;
  for (int64_t rank = 0; rank < mesh.world(); ++rank) ranks.emplace_back(MeshPosition{mesh, rank});
  for (const Link& link : LinksOf(mesh, exchanged)) {
    const int64_t size = mesh.SizeOf(link.group);
    std::vector<std::vector<std::unique_ptr<Communicator>>> groups;
    for (int64_t g = 0; g < mesh.world() / size; ++g)
      groups.push_back(MakeLocalGroup(static_cast<int>(size)));
    for (int64_t rank = 0; rank < mesh.world(); ++rank) {
      auto& group = groups[mesh.NumberOf(link.group, rank)];
      ranks[rank].Add(link.group, link.role, std::move(group[mesh.IndexIn(link.group, rank)]));
    }
  }
  return ranks;
}

}  // namespace fsdpd
