#include "fsdp/plan/spec/smaller_worlds.h"

#include <algorithm>
#include <tuple>

#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

// Drops replicas first, so that no rank holds a larger shard: keeps as many replicas as still have their old
// size or more. If not even one fits, that replica is sharded over fewer ranks.
void ShrinkOuter(int64_t ranks_before, int64_t ranks, v1::Fsdp* fsdp) {
  int64_t replicas = fsdp->outer().size();
  if (replicas <= 1) return;
  const int64_t sharded = ranks_before / replicas;
  while (replicas > 1 && (ranks % replicas != 0 || ranks / replicas < sharded)) --replicas;
  if (replicas == 1) return fsdp->clear_outer();
  fsdp->mutable_outer()->set_size(replicas);
}

}  // namespace

std::vector<World> SmallerWorlds(const v1::JobSpec& job) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  const int64_t per_sample = RanksPerSample(filled), batch = GlobalBatchOf(filled), all = RanksOf(filled);
  const int64_t least = std::max<int64_t>(1, filled.restart().elastic().min_ranks());
  std::vector<World> worlds;
  for (int64_t nodes = 1; nodes <= filled.resources().nodes(); ++nodes) {
    for (int64_t each = 1; each <= filled.resources().ranks_per_node(); ++each) {
      const World world = {nodes, each};
      if (world.ranks() < least || world.ranks() >= all) continue;
      if (world.ranks() % per_sample != 0 || each % filled.parallel().tensor() != 0) continue;
      if (batch % (filled.train().micro_batch() * (world.ranks() / per_sample)) == 0) worlds.push_back(world);
    }
  }
  std::sort(worlds.begin(), worlds.end(), [](const World& a, const World& b) {
    return std::make_tuple(-a.ranks(), a.nodes) < std::make_tuple(-b.ranks(), b.nodes);
  });
  return worlds;
}

v1::JobSpec InWorld(const v1::JobSpec& job, const World& world) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  v1::JobSpec smaller = job;
  smaller.mutable_resources()->set_nodes(world.nodes);
  smaller.mutable_resources()->set_ranks_per_node(world.ranks_per_node);
  smaller.mutable_train()->set_global_batch(GlobalBatchOf(filled));
  ShrinkOuter(RanksOf(filled), world.ranks(), smaller.mutable_fsdp());
  smaller.mutable_restart()->clear_elastic();
  return smaller;
}

}  // namespace fsdpd
