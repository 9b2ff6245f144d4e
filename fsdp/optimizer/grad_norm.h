// The sum of squares of all gradients that a rank holds, in fp32, exact enough for the clipping of two worlds
// to agree. Gradients are measured here, or where they are summed up, which leaves their squares in parts.
//
// LibTorch's CPU kernel for norms adds a tensor's squares one after the other: of 23 M elements it is 2.0e-4
// too small, of 150 M 1.3e-3, and so clipping hung on how the model was cut. So CPU gradients go to it in
// pieces of kPieceElements, whose norms are added pairwise: 1e-7, for 4.3 instead of 3.4 ms at 20 M. CUDA's
// kernel cuts its tensors itself.
//
// Call order: all that is added, then Sum() any number of times. Thread safety: none. LibTorch's exceptions
// pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

namespace fsdpd {

class GradSquares {
 public:
  // Ranks that hold the same elements, `copies` of them, each give their part of the squares to the sum. All
  // that is added is on one device.

  // A flat gradient to be measured by Sum().
  void Add(const at::Tensor& grad, int64_t copies);

  // As many fp32 sums of squares, for somebody else to write before Sum().
  at::Tensor AddParts(int64_t parts, int64_t copies, at::Device device);

  // A scalar fp32; undefined when nothing was added, or only what is empty.
  at::Tensor Sum() const;

 private:
  struct Copies {
    std::vector<at::Tensor> grads;  // In pieces that are exact enough.
    std::vector<at::Tensor> parts;
  };
  std::map<int64_t, Copies> of_copies_;
};

}  // namespace fsdpd
