#include "fsdp/engine/optimizer.h"

#include "base/check.h"
#include "fsdp/comm/mesh.h"
#include "fsdp/engine/adamw.h"
#include "fsdp/engine/sgd.h"
#include "fsdp/engine/sharded_params.h"
#include "fsdp/engine/update_groups.h"

namespace fsdpd {

std::unique_ptr<Optimizer> MakeOptimizer(const Spec& spec, const Layout& layout, MeshPosition position,
                                         at::Device device) {
  std::vector<std::vector<UpdateGroup>> groups;
  for (const Bucket& bucket : layout.buckets) {
    groups.push_back(UpdateGroupsOf(bucket, OwnMainRange(layout, bucket, position)));
  }
  switch (spec.optimizer.kind) {
    case OptimizerKind::kAdamW:
      return std::make_unique<AdamW>(spec.optimizer, std::move(groups), device);
    case OptimizerKind::kSgd:
      return std::make_unique<Sgd>(spec.optimizer, std::move(groups));
  }
  FSDPD_CHECK(false);
  return nullptr;
}

}  // namespace fsdpd
