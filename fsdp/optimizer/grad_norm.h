// Sum of squares of all gradients of a rank, in fp32, precise enough for different world sizes to clip alike.
// Gradients are measured here, or by the kernel that reduces them, which leaves partial sums of squares.
//
// LibTorch's CPU norm kernel adds the squares of a tensor sequentially: the result is too small by 2.0e-4 for
// 23 M elements and 1.3e-3 for 150 M, so clipping would depend on how the model is sharded. Therefore CPU
// gradients are split into pieces of kPieceElements, whose norms are added pairwise: the error is 1e-7, at
// 4.3 ms instead of 3.4 ms for 20 M elements. The CUDA kernel splits its tensors itself.
//
// Call order: Add and AddParts, then Sum() any number of times. Not thread-safe. Exceptions of LibTorch pass
// through.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

namespace fsdpd {

class GradSquares {
 public:
  // `copies`: the number of ranks that hold the same elements; each contributes 1/copies of the squares. All
  // tensors must be on one device.

  // Adds a flat gradient that Sum() measures.
  void Add(const at::Tensor& grad, int64_t copies);

  // Adds and returns `parts` fp32 partial sums of squares, which the caller writes before Sum().
  at::Tensor AddParts(int64_t parts, int64_t copies, at::Device device);

  // Returns an fp32 scalar; undefined if only empty tensors, or none, were added.
  at::Tensor Sum() const;

 private:
  struct Copies {
    std::vector<at::Tensor> grads;  // Split into pieces.
    std::vector<at::Tensor> parts;
  };
  std::map<int64_t, Copies> of_copies_;
};

}  // namespace fsdpd
