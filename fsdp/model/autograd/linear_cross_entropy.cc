#include "fsdp/model/autograd/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace fsdpd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Chunk {
  at::Tensor hidden;   // [rows, hidden]
  at::Tensor counts;   // [rows, 1] bool
  at::Tensor targets;  // [rows, 1]; 0 for targets that do not count.

  Chunk(const at::Tensor& all_hidden, const at::Tensor& all_targets, int64_t begin, int64_t rows)
      : hidden(all_hidden.narrow(0, begin, rows)) {
    const at::Tensor given = all_targets.narrow(0, begin, rows).unsqueeze(1);
    counts = given.ne(kIgnoredTarget);
    targets = given.mul(counts);
  }

  at::Tensor Logits(const at::Tensor& weight) const { return at::linear(hidden, weight).to(at::kFloat); }
};

class LinearCrossEntropyFunction : public torch::autograd::Function<LinearCrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, int64_t chunk_tokens) {
    const int64_t tokens = hidden.size(0);
    const at::Tensor log_sums = at::empty({tokens, 1}, hidden.options().dtype(at::kFloat));
    at::Tensor loss = at::zeros({}, log_sums.options());
    for (int64_t begin = 0; begin < tokens; begin += chunk_tokens) {
      const int64_t rows = std::min(chunk_tokens, tokens - begin);
      const Chunk chunk(hidden, targets, begin, rows);
      at::Tensor logits = chunk.Logits(weight);
      const at::Tensor largest = at::amax(logits, {1}, /*keepdim=*/true);
      logits.sub_(largest);
      const at::Tensor of_target = logits.gather(1, chunk.targets);
      const at::Tensor log_sum = logits.exp_().sum(1, /*keepdim=*/true).log_();
      loss.add_((log_sum - of_target).masked_fill_(chunk.counts.logical_not(), 0).sum());
      log_sums.narrow(0, begin, rows).copy_(log_sum.add_(largest));
    }
    context->save_for_backward({hidden, weight, targets, log_sums});
    context->saved_data["chunk_tokens"] = chunk_tokens;
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &targets = saved[2], &log_sums = saved[3];
    const int64_t tokens = hidden.size(0);
    const int64_t chunk_tokens = std::min(tokens, context->saved_data["chunk_tokens"].toInt());
    const at::Tensor grad_hidden = at::empty_like(hidden);
    at::Tensor grad_weight;
    for (int64_t begin = 0; begin < tokens; begin += chunk_tokens) {
      const int64_t rows = std::min(chunk_tokens, tokens - begin);
      const Chunk chunk(hidden, targets, begin, rows);
      // Softmax minus the one-hot target, in place of the logits.
      at::Tensor grad_logits = chunk.Logits(weight).sub_(log_sums.narrow(0, begin, rows)).exp_();
      grad_logits.scatter_add_(1, chunk.targets, at::full_like(chunk.targets, -1, grad_logits.options()));
      grad_logits.mul_(chunk.counts.to(at::kFloat) * grads[0]);
      const at::Tensor narrow = grad_logits.to(hidden.scalar_type());
      at::Tensor grad_rows = grad_hidden.narrow(0, begin, rows);
      at::mm_out(grad_rows, narrow, weight);
      if (context->needs_input_grad(1))
        AddWeightGradient(narrow, chunk.hidden, tokens > chunk_tokens, &grad_weight);
    }
    return {grad_hidden, grad_weight, at::Tensor(), at::Tensor()};
  }

 private:
  // Summed over chunks in fp32, since the gradient of a common token's row is a long sum.
  static void AddWeightGradient(const at::Tensor& grad_logits, const at::Tensor& hidden, bool chunks,
                                at::Tensor* sum) {
    const at::Tensor product = at::mm(grad_logits.t(), hidden);
    if (sum->defined()) {
      sum->add_(product);
    } else {
      *sum = chunks ? product.to(at::kFloat) : product;
    }
  }
};

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                              int64_t chunk_tokens) {
  return LinearCrossEntropyFunction::apply(hidden, weight, targets, chunk_tokens);
}

}  // namespace fsdpd
