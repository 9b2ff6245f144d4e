#include "fsdp/engine/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

namespace fsdpd {

std::vector<DecayRun> DecayRuns(const UnitLayout& unit, int64_t shard) {
  std::vector<DecayRun> runs;
  for (const ShardPiece& piece : PiecesOf(unit, shard)) {
    const bool decay = unit.params[piece.param].decay;
    if (runs.empty() || runs.back().decay != decay) runs.push_back({piece.shard_begin, 0, decay});
    runs.back().elements = piece.shard_begin + piece.elements - runs.back().begin;
  }
  return runs;
}

AdamW::AdamW(const AdamWConfig& config, const Layout& layout, int64_t shard, at::Device device)
    : config_(config), step_(at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device))) {
  for (const UnitLayout& unit : layout.units) runs_.push_back(DecayRuns(unit, shard));
}

void AdamW::BeginStep(int64_t step, double learning_rate) {
  step_.fill_(step);
  learning_rate_ = learning_rate;
}

void AdamW::Update(int unit, const UnitShard& shard, const at::Tensor& grad_divisor) const {
  for (bool decay : {true, false}) {
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
    for (const DecayRun& run : runs_[unit]) {
      if (run.decay != decay) continue;
      params.push_back(shard.main.narrow(0, run.begin, run.elements));
      grads.push_back(shard.grad.narrow(0, run.begin, run.elements));
      exp_avgs.push_back(shard.exp_avg.narrow(0, run.begin, run.elements));
      exp_avg_sqs.push_back(shard.exp_avg_sq.narrow(0, run.begin, run.elements));
    }
    if (params.empty()) continue;
    const std::vector<at::Tensor> steps(params.size(), step_);
    at::_fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, learning_rate_,
                      config_.beta1, config_.beta2, decay ? config_.weight_decay : 0.0, config_.eps,
                      /*amsgrad=*/false, /*maximize=*/false,
                      grad_divisor.defined() ? std::optional<at::Tensor>(grad_divisor) : std::nullopt);
  }
}

}  // namespace fsdpd
