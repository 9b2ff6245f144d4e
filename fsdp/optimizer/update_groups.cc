#include "fsdp/optimizer/update_groups.h"

#include <algorithm>

namespace fsdpd {

std::vector<UpdateGroup> UpdateGroupsOf(const Bucket& bucket, BucketRange main) {
  std::vector<UpdateGroup> groups;
  if (!bucket.trainable) return groups;
  size_t previous = 0;
  for (const BucketPiece& piece : PiecesOf(bucket, main)) {
    const ParamSlot& slot = bucket.params[piece.slot];
    const auto same = std::find_if(groups.begin(), groups.end(), [&slot](const UpdateGroup& group) {
      return group.weight_decay == slot.weight_decay && group.lr_scale == slot.lr_scale;
    });
    const auto group = static_cast<size_t>(same - groups.begin());
    if (same == groups.end()) groups.push_back({slot.weight_decay, slot.lr_scale, {}});
    std::vector<BucketRange>& runs = groups[group].runs;
    if (runs.empty() || group != previous) runs.push_back({piece.range_begin, 0});
    runs.back().elements = piece.range_begin + piece.elements - runs.back().begin;
    previous = group;
  }
  return groups;
}

std::vector<at::Tensor> RunsOf(const UpdateGroup& group, const at::Tensor& flat) {
  std::vector<at::Tensor> runs;
  runs.reserve(group.runs.size());
  for (const BucketRange& run : group.runs) runs.push_back(flat.narrow(0, run.begin, run.elements));
  return runs;
}

at::Tensor InFp32(const at::Tensor& stored) { return stored.to(at::kFloat); }

void StoreBack(const at::Tensor& fp32, const at::Tensor& stored) {
  if (!fp32.is_same(stored)) stored.copy_(fp32);
}

}  // namespace fsdpd
