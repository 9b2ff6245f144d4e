// Update groups: parts of a main shard that are updated with the same hyperparameters. An optimizer calls its
// kernel once per group, with the group's runs as a list of tensors.
//
// Pure functions; exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

// All runs with this weight decay and learning-rate factor. A run begins relative to the main shard.
struct UpdateGroup {
  double weight_decay = 0;
  double lr_scale = 1;
  std::vector<BucketRange> runs;
};

// The groups of the elements in `main`, in order of first appearance. Adjacent parameters of one group form
// one run, including the padding between them (zero is updated to zero). Empty for a range of padding only
// and for a frozen bucket.
std::vector<UpdateGroup> UpdateGroupsOf(const Bucket& bucket, BucketRange main);

// The runs of a group as tensors for LibTorch's fused kernels: views of `flat`, a tensor of the main shard.
//
// On CPU the kernels process whole vectors with fused multiply-add, and the remaining elements one by one
// without it, so their last bit may differ. The result for a parameter would depend on its offset in the
// shard, and that of a model on the world size. Therefore a run's view on CPU ends with its last whole
// vector, and the tails of all runs follow as one extra tensor: copies, each padded with zeros to a whole
// vector. StoreTails copies them back.
std::vector<at::Tensor> RunsOf(const UpdateGroup& group, const at::Tensor& flat);

// Copies the updated tails of `runs`, which RunsOf() returned, back to `flat`.
void StoreTails(const UpdateGroup& group, const std::vector<at::Tensor>& runs, const at::Tensor& flat);

// Returns the tensor itself if it is fp32, otherwise an fp32 copy.
at::Tensor InFp32(const at::Tensor& stored);

// Rounds the result of InFp32() back to `stored`; does nothing if it is the same tensor.
void WriteBack(const at::Tensor& fp32, const at::Tensor& stored);

}  // namespace fsdpd
