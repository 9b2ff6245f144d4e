#include "fsdp/optimizer/grad_norm.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>

namespace fsdpd {
namespace {

constexpr int64_t kPieceElements = 65'536;

}  // namespace

void AddPieces(const at::Tensor& grad, std::vector<at::Tensor>* pieces) {
  if (grad.numel() == 0) return;
  if (grad.is_cuda()) return pieces->push_back(grad);
  for (at::Tensor& piece : grad.split(kPieceElements)) pieces->push_back(std::move(piece));
}

at::Tensor SumOfSquares(const std::vector<at::Tensor>& pieces) {
  return at::stack(at::_foreach_norm(pieces, 2, at::kFloat)).square().sum();
}

}  // namespace fsdpd
