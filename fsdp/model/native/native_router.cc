#include "fsdp/model/native/native_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "fsdp/model/unit/unit.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

// x matrix^T
at::Tensor LogitsOf(const at::Tensor& x, const at::Tensor& matrix) {
  if (x.is_cuda() && x.scalar_type() != at::kFloat) return at::mm(x, matrix.t(), at::kFloat);
  return at::mm(x.to(at::kFloat), matrix.to(at::kFloat).t());
}

bool HasTensorCores(const at::Tensor& factor) {
  return factor.is_cuda() && factor.scalar_type() == at::kBFloat16;
}

// Splits each fp32 number of x into two bf16 numbers whose sum is within 2^-16 of it: [rows x 2 width].
at::Tensor InTwo(const at::Tensor& x) {
  const at::Tensor most = x.to(at::kBFloat16);
  return at::cat({most, x.sub(most).to(at::kBFloat16)}, 1);
}

at::Tensor ScoresOf(const Routing& routing, const ExpertsConfig& config) {
  return config.sigmoid ? routing.logits.sigmoid() : at::softmax(routing.logits, -1, at::kFloat);
}

// Each score as a fraction of the sum of a token's scores.
at::Tensor SharesOf(const at::Tensor& scores, const ExpertsConfig& config) {
  return config.sigmoid ? scores / scores.sum(-1, /*keepdim=*/true) : scores;
}

// Group-limited routing: masks the experts of groups that a token does not use.
at::Tensor WithoutOtherGroups(const at::Tensor& scores, const ExpertsConfig& config) {
  if (config.groups_per_token == config.groups) return scores;
  const at::Tensor grouped = scores.unflatten(-1, {config.groups, -1});
  const at::Tensor best =
      config.groups_by_best ? at::amax(grouped, {-1}) : std::get<0>(at::topk(grouped, 2)).sum(-1);
  const at::Tensor chosen = std::get<1>(at::topk(best, config.groups_per_token));
  const at::Tensor others = at::ones_like(best, best.options().dtype(at::kBool)).scatter_(-1, chosen, 0);
  return grouped.masked_fill(others.unsqueeze(-1), -std::numeric_limits<float>::infinity()).flatten(1);
}

at::Tensor ChooseExperts(const at::Tensor& scores, const at::Tensor& bias, const ExpertsConfig& config) {
  const at::Tensor biased = bias.defined() ? scores + bias.to(at::kFloat) : scores;
  return std::get<1>(at::topk(WithoutOtherGroups(biased, config), config.per_token));
}

int64_t SamplesOf(const Routing& routing) { return routing.loads.size(0); }

// Coefficients of the balance loss, by which a token's scores are multiplied and summed: for each sample and
// expert, experts x the fraction of the sample's choices routed to it x the sample's weight.
at::Tensor BalanceOf(const Routing& routing, const ExpertsConfig& config) {
  const at::Tensor choices = routing.loads.sum(-1, /*keepdim=*/true);
  return routing.loads.mul(static_cast<double>(config.count))
      .div_(choices)
      .mul_(routing.counted.unsqueeze(-1))
      .unsqueeze(1);
}

// [samples x tokens per sample x experts]
at::Tensor BySample(const at::Tensor& of_tokens, const Routing& routing) {
  return of_tokens.unflatten(0, {SamplesOf(routing), -1});
}

// Multiplies `of_tokens`, [tokens x 1], by the weight of each token's sample.
at::Tensor Weighed(const at::Tensor& of_tokens, const Routing& routing) {
  return BySample(of_tokens, routing).mul(routing.counted.view({-1, 1, 1})).flatten(0, 1);
}

// The gradient of the scores, from that of the choice weights.
at::Tensor GradOfScores(const Routing& routing, const ExpertsConfig& config, const at::Tensor& scores,
                        at::Tensor grad_chosen) {
  if (config.weight_scale != 1) grad_chosen.mul_(config.weight_scale);
  if (config.normalized) {
    const at::Tensor chosen = scores.gather(1, routing.experts), sum = chosen.sum(-1, /*keepdim=*/true);
    // Divide the scores, not the sum of products: with per_token = 1, chosen / sum is exactly 1 and the
    // gradient exactly 0. The other order leaves rounding error, which AdamW's scaling makes large enough to
    // change routes, e.g. a gradient of 1e-11 with eps = 1e-8 is a step of 1e-3 lr.
    const at::Tensor along = grad_chosen.mul(chosen.div(sum)).sum(-1, /*keepdim=*/true);
    grad_chosen.sub_(along).div_(sum);
  }
  return at::zeros_like(scores).scatter_(1, routing.experts, grad_chosen);
}

// The gradient of the balance loss, before scaling.
at::Tensor BalanceBackward(const Routing& routing, const ExpertsConfig& config, const at::Tensor& scores) {
  const at::Tensor of_shares =
      BalanceOf(routing, config).expand_as(BySample(scores, routing)).reshape(scores.sizes());
  if (!config.sigmoid) return of_shares;
  const at::Tensor along = of_shares.mul(SharesOf(scores, config)).sum(-1, /*keepdim=*/true);
  return of_shares.sub(along).div_(scores.sum(-1, /*keepdim=*/true));
}

}  // namespace

Routing Route(const at::Tensor& x, const Router& router, const ExpertsConfig& config,
              const at::Tensor& targets, UnitContext* context) {
  const int64_t samples = targets.size(0), ranks = context->SizeOf(Group::kContext);
  Routing routing;
  routing.logits = LogitsOf(x, router.matrix);
  routing.experts = ChooseExperts(ScoresOf(routing, config), router.bias, config);
  if (context->SizeOf(Group::kExpert) == 1)
    routing.rows = PlaceRows(routing.experts, config.count, x.is_cuda() ? kExpertRowStep : 1);
  const at::Tensor sample = at::arange(samples, routing.experts.options()).mul_(config.count);
  const at::Tensor of_samples = routing.experts.view({samples, -1}).add(sample.unsqueeze(-1)).flatten();
  // Exact in any order: counts are integers, which fp32 represents up to 2^24.
  routing.loads = at::zeros({samples * config.count}, routing.logits.options())
                      .scatter_add_(0, of_samples, at::ones(of_samples.sizes(), routing.logits.options()))
                      .view({samples, config.count});
  routing.counts = routing.loads.sum(0);
  routing.counted = targets.ne(kIgnoredTarget)
                        .sum(-1, /*keepdim=*/false, at::kFloat)
                        .div_(static_cast<double>(targets.size(1) * ranks));
  if (ranks > 1) {
    at::Tensor sums = at::cat({routing.loads, routing.counted.unsqueeze(-1)}, -1);
    context->AllReduce(Group::kContext, sums);
    routing.loads = sums.narrow(-1, 0, config.count);
    routing.counted = sums.select(-1, config.count);
  }
  return routing;
}

at::Tensor ChoiceWeights(const Routing& routing, const ExpertsConfig& config) {
  at::Tensor weights = ScoresOf(routing, config).gather(1, routing.experts);
  if (config.normalized) weights.div_(weights.sum(-1, /*keepdim=*/true));
  if (config.weight_scale != 1) weights.mul_(config.weight_scale);
  return weights.flatten().unsqueeze(-1);
}

at::Tensor RoutingSums(const Routing& routing, const ExpertsConfig& config) {
  const auto tokens = static_cast<double>(routing.logits.size(0));
  const double mean = static_cast<double>(routing.experts.numel()) / static_cast<double>(config.count);
  const at::Tensor shares = SharesOf(ScoresOf(routing, config), config);
  const at::Tensor log_sum = at::logsumexp(routing.logits, {-1}, /*keepdim=*/true);
  return at::stack({routing.counts.max().mul_(tokens / mean),
                    shares.mul(shares.clamp_min(std::numeric_limits<float>::min()).log_()).sum().neg_(),
                    BySample(shares, routing).mul(BalanceOf(routing, config)).sum(),
                    Weighed(log_sum.square(), routing).sum()});
}

at::Tensor RouterBackward(const Routing& routing, const ExpertsConfig& config, at::Tensor grad_weights,
                          const UnitContext& context) {
  const at::Tensor scores = ScoresOf(routing, config);
  at::Tensor grad_scores = GradOfScores(routing, config, scores, grad_weights.view(routing.experts.sizes()));
  const bool adds_losses = context.IndexIn(Group::kTensor) == 0;
  const at::Tensor grad_loss = adds_losses ? context.GradLoss() : at::Tensor();
  if (grad_loss.defined() && config.balance_loss > 0)
    grad_scores.addcmul_(BalanceBackward(routing, config, scores), grad_loss, config.balance_loss);
  at::Tensor grad_logits =
      config.sigmoid ? grad_scores.mul_(scores).mul_(1 - scores)
                     : grad_scores.sub(grad_scores.mul(scores).sum(-1, /*keepdim=*/true)).mul_(scores);
  if (grad_loss.defined() && config.z_loss > 0) {
    const at::Tensor log_sum = at::logsumexp(routing.logits, {-1}, /*keepdim=*/true);
    const at::Tensor of_log_sum = Weighed(log_sum, routing).mul_(grad_loss).mul_(2 * config.z_loss);
    grad_logits.addcmul_(at::softmax(routing.logits, -1, at::kFloat), of_log_sum);
  }
  return grad_logits;
}

void AddRouterInputGrad(const at::Tensor& grad_logits, const at::Tensor& matrix, at::Tensor* sum) {
  if (HasTensorCores(matrix)) {
    at::addmm_out(*sum, *sum, InTwo(grad_logits), at::cat({matrix, matrix}), at::kFloat);
  } else {
    sum->addmm_(grad_logits, matrix.to(at::kFloat));
  }
}

at::Tensor RouterMatrixGrad(const at::Tensor& grad_logits, const at::Tensor& x) {
  if (!HasTensorCores(x)) return at::mm(grad_logits.t(), x.to(at::kFloat));
  return at::mm(InTwo(grad_logits).t(), x, at::kFloat).unflatten(0, {2, -1}).sum(0);
}

}  // namespace fsdpd
