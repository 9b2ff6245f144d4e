// The sum of squares of all gradients that a rank holds, in fp32, exact enough for the clipping of two worlds
// to agree.
//
// LibTorch's CPU kernel for norms adds a tensor's squares one after the other: of 23 M elements it is 2.0e-4
// too small, of 150 M 1.3e-3, and so clipping hung on how the model was cut. So CPU gradients go to it in
// pieces of kPieceElements, whose norms are added pairwise: 1e-7, for 4.3 instead of 3.4 ms at 20 M. CUDA's
// kernel cuts its tensors itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdpd {

// Appends `grad`, flat, to what SumOfSquares will add: views of it. Nothing for an empty one.
void AddPieces(const at::Tensor& grad, std::vector<at::Tensor>* pieces);

// A scalar fp32 on the pieces' device. REQUIRES: at least one piece.
at::Tensor SumOfSquares(const std::vector<at::Tensor>& pieces);

}  // namespace fsdpd
