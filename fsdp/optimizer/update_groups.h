// What of a bucket's main piece is updated alike: an optimizer calls its kernel once for each group, with the
// group's runs as a list of tensors.
//
// Pure functions; LibTorch's exceptions pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

// All runs with this pair. A run's begin counts from the main piece's start.
struct UpdateGroup {
  double weight_decay = 0;
  double lr_scale = 1;
  std::vector<BucketRange> runs;
};

// The groups of the bucket's elements in `main`, by first appearance; runs in order. Parameters of one group
// that follow each other are one run, the padding between them included (zero is updated to zero). Empty for
// a range that holds padding only, and for a bucket that is not trained.
std::vector<UpdateGroup> UpdateGroupsOf(const Bucket& bucket, BucketRange main);

// The group's runs as LibTorch's fused kernels get them: views of a flat tensor of the main piece.
//
// On CPU the kernels work in vectors, with fused multiply-add, and on what is left over at a tensor's end
// element by element without it, whose last bit may be another. So a parameter's new value would hang on
// where it lies in the piece, and a model's on how many ranks cut it. Therefore a CPU run's view ends with
// its last whole vector, and what is left over of all runs follows as one more tensor: a copy of each, padded
// with zeros to a vector. StoreTails brings that back.
std::vector<at::Tensor> RunsOf(const UpdateGroup& group, const at::Tensor& flat);

// Writes what a kernel made of the tails in `runs`, RunsOf() of both, into `flat`.
void StoreTails(const UpdateGroup& group, const std::vector<at::Tensor>& runs, const at::Tensor& flat);

// The tensor itself where it is fp32, else a widened copy.
at::Tensor InFp32(const at::Tensor& stored);

// Rounds what InFp32 gave for `stored` back into it; nothing to do where it is `stored` itself.
void StoreBack(const at::Tensor& fp32, const at::Tensor& stored);

}  // namespace fsdpd
