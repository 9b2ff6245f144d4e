#include "fsdp/optimizer/make_optimizer.h"

#include "base/check.h"
#include "fsdp/optimizer/adamw.h"
#include "fsdp/optimizer/sgd.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/optimizer/update_groups.h"

namespace fsdpd {

std::unique_ptr<Optimizer> MakeOptimizer(const Spec& spec, const Layout& layout, MeshPosition position,
                                         at::Device device) {
  std::vector<std::vector<UpdateGroup>> groups;
  for (const Bucket& bucket : layout.buckets) {
    groups.push_back(UpdateGroupsOf(bucket, MainRange(bucket, position)));
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
