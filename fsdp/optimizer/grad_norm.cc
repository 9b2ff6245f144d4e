#include "fsdp/optimizer/grad_norm.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace fsdpd {
namespace {

constexpr int64_t kPieceElements = 65'536;

}  // namespace

void GradSquares::Add(const at::Tensor& grad, int64_t copies) {
  if (grad.numel() == 0) return;
  std::vector<at::Tensor>& grads = of_copies_[copies].grads;
  if (grad.is_cuda()) return grads.push_back(grad);
  for (at::Tensor& piece : grad.split(kPieceElements)) grads.push_back(std::move(piece));
}

at::Tensor GradSquares::AddParts(int64_t parts, int64_t copies, at::Device device) {
  const at::Tensor made = at::zeros({parts}, at::TensorOptions().dtype(at::kFloat).device(device));
  if (parts > 0) of_copies_[copies].parts.push_back(made);
  return made;
}

at::Tensor GradSquares::Sum() const {
  at::Tensor sum;
  const auto add = [&sum](at::Tensor squares, int64_t copies) {
    squares.div_(static_cast<double>(copies));
    sum = sum.defined() ? sum.add_(squares) : squares;
  };
  for (const auto& [copies, of] : of_copies_) {
    if (!of.grads.empty()) add(at::stack(at::_foreach_norm(of.grads, 2, at::kFloat)).square().sum(), copies);
    if (!of.parts.empty()) add(at::cat(of.parts).sum(), copies);
  }
  return sum;
}

}  // namespace fsdpd
