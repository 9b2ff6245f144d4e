#include "fsdp/optimizer/update_groups.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fsdpd {
namespace {

// Width of AVX-512 in fp32 elements. A multiple of narrower vectors, and of the granularity at which the
// kernels split a tensor between threads.
constexpr int64_t kVectorElements = 16;

int64_t TailOf(const BucketRange& run) { return run.elements % kVectorElements; }

int64_t CountTails(const UpdateGroup& group) {
  return std::count_if(group.runs.begin(), group.runs.end(),
                       [](const BucketRange& run) { return TailOf(run) > 0; });
}

// Calls visit(tail in `flat`, its copy in `tails`, elements) for each run with a tail.
template <typename Visit>
void ForEachTail(const UpdateGroup& group, const at::Tensor& flat, const at::Tensor& tails, Visit visit) {
  auto* const values = flat.mutable_data_ptr<float>();
  auto* next = tails.mutable_data_ptr<float>();
  for (const BucketRange& run : group.runs) {
    if (TailOf(run) == 0) continue;
    visit(values + run.begin + run.elements - TailOf(run), next, TailOf(run));
    next += kVectorElements;
  }
}

}  // namespace

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
  runs.reserve(group.runs.size() + 1);
  for (const BucketRange& run : group.runs) {
    const int64_t elements = run.elements - (flat.is_cuda() ? 0 : TailOf(run));
    if (elements > 0) runs.push_back(flat.narrow(0, run.begin, elements));
  }
  if (flat.is_cuda() || CountTails(group) == 0) return runs;
  runs.push_back(at::zeros({CountTails(group) * kVectorElements}, flat.options()));
  ForEachTail(group, flat, runs.back(),
              [](const float* tail, float* copy, int64_t elements) { std::copy_n(tail, elements, copy); });
  return runs;
}

void StoreTails(const UpdateGroup& group, const std::vector<at::Tensor>& runs, const at::Tensor& flat) {
  if (flat.is_cuda() || CountTails(group) == 0) return;
  ForEachTail(group, flat, runs.back(),
              [](float* tail, const float* copy, int64_t elements) { std::copy_n(copy, elements, tail); });
}

at::Tensor InFp32(const at::Tensor& stored) { return stored.to(at::kFloat); }

void WriteBack(const at::Tensor& fp32, const at::Tensor& stored) {
  if (!fp32.is_same(stored)) stored.copy_(fp32);
}

}  // namespace fsdpd
