#include "fsdp/model/native/native_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

namespace fsdpd {
namespace {

at::Tensor FlatTokens(const at::Tensor& x) { return x.flatten(0, 1).flatten(1); }

}  // namespace

NativeBlock::Params NativeBlock::Find(const NativeBlock& block) {
  const auto index = [&](const char* name) { return block.IndexOf(name); };
  return {index("attention_norm"),   index("attention.wq"), index("attention.bq"), index("attention.wk"),
          index("attention.bk"),     index("attention.wv"), index("attention.bv"), index("attention.q_norm"),
          index("attention.k_norm"), index("attention.wo"), index("ffn_norm"),     index("ffn.w1"),
          index("ffn.w3"),           index("ffn.w2")};
}

NativeBlock::NativeBlock(UnitFacts facts, at::ScalarType compute, const LlamaConfig& config, Rotary rotary)
    : NativeUnit(std::move(facts), compute, /*borrowed=*/0),
      config_(config),
      rotary_(std::move(rotary)),
      p_(Find(*this)) {
  for (const int index : {p_.attention_norm, p_.wq, p_.wk, p_.wv, p_.wo, p_.ffn_norm, p_.w1, p_.w3, p_.w2}) {
    FSDPD_CHECK(index >= 0);
  }
}

void NativeBlock::FillAttentionInput(Kept* kept) const {
  if (kept->attention_in.y.defined()) return;
  kept->attention_in = RmsNormForward(kept->x.flatten(0, 1), param(p_.attention_norm), config_.norm_epsilon);
}

void NativeBlock::FillQk(Kept* kept) const {
  if (kept->qkv.q.defined()) return;
  at::Tensor q = kept->raw_q, k = kept->raw_k;
  if (config_.qk_norm) {
    Normed norm_q = RmsNormForward(q.flatten(0, 2), param(p_.q_norm), config_.norm_epsilon);
    Normed norm_k = RmsNormForward(k.flatten(0, 2), param(p_.k_norm), config_.norm_epsilon);
    q = norm_q.y.view_as(q);
    k = norm_k.y.view_as(k);
    kept->q_rstd = std::move(norm_q.rstd);
    kept->k_rstd = std::move(norm_k.rstd);
  }
  RotateForward(rotary_, &q, &k);
  kept->qkv.q = std::move(q);
  kept->qkv.k = std::move(k);
}

void NativeBlock::FillMiddle(Kept* kept) const {
  const int64_t batch = kept->x.size(0), sequence = kept->x.size(1);
  const auto heads = [&](int weight, int bias, int64_t count) {
    return at::linear(kept->attention_in.y, param(weight), param(bias))
        .view({batch, sequence, count, config_.head_size});
  };
  FillAttentionInput(kept);
  kept->raw_q = heads(p_.wq, p_.bq, config_.heads);
  kept->raw_k = heads(p_.wk, p_.bk, config_.kv_heads);
  kept->qkv.v = heads(p_.wv, p_.bv, config_.kv_heads);
  FillQk(kept);
  if (!config_.qk_norm) kept->raw_q = kept->raw_k = at::Tensor();
  kept->attended = AttentionForward(kept->qkv, ChooseAttentionKernel(kept->qkv));
  kept->middle = at::addmm(kept->x.flatten(0, 1), FlatTokens(kept->attended.out), param(p_.wo).t());
}

void NativeBlock::FillFfnInput(Kept* kept) const {
  if (kept->ffn_in.y.defined()) return;
  kept->ffn_in = RmsNormForward(kept->middle, param(p_.ffn_norm), config_.norm_epsilon);
}

void NativeBlock::FillGateAndUp(Kept* kept) const {
  FillFfnInput(kept);
  kept->gate = at::linear(kept->ffn_in.y, param(p_.w1));
  kept->up = at::linear(kept->ffn_in.y, param(p_.w3));
}

void NativeBlock::FillProduct(Kept* kept) const {
  if (!kept->product.defined()) kept->product = SwigluForward(kept->gate, kept->up);
}

void NativeBlock::DropAttention(Keep keep, Kept* kept) const {
  if (keep == Keep::kAll) return;
  kept->attention_in = {};
  if (keep == Keep::kSelective) {
    if (config_.qk_norm) kept->qkv.q = kept->qkv.k = kept->q_rstd = kept->k_rstd = at::Tensor();
    return;
  }
  kept->raw_q = kept->raw_k = kept->q_rstd = kept->k_rstd = at::Tensor();
  kept->qkv = {};
  kept->attended = {};
}

void NativeBlock::DropFfn(Keep keep, Kept* kept) const {
  if (keep == Keep::kAll) return;
  kept->ffn_in = {};
  kept->product = at::Tensor();
  if (keep == Keep::kInput) kept->middle = kept->gate = kept->up = at::Tensor();
}

UnitOutput NativeBlock::Forward(int slot, const UnitInput& input, Keep keep) {
  const at::NoGradGuard no_grad;
  FSDPD_CHECK(input.hidden.size(1) == rotary_.cos.size(0));
  Kept kept;
  kept.x = input.hidden;
  FillMiddle(&kept);
  DropAttention(keep, &kept);
  FillGateAndUp(&kept);
  FillProduct(&kept);
  const at::Tensor out = at::addmm(kept.middle, kept.product, param(p_.w2).t());
  if (keep != Keep::kNothing) {
    DropFfn(keep, &kept);
    kept_.Put(slot, std::move(kept));
  }
  return {out.view_as(input.hidden), at::Tensor()};
}

at::Tensor NativeBlock::Backward(int slot, const at::Tensor& grad_hidden, const at::Tensor& grad_loss,
                                 bool accumulate, const std::vector<at::Tensor>& param_grads) {
  const at::NoGradGuard no_grad;
  CheckGrads(param_grads);
  Kept kept = kept_.Take(slot);
  if (!kept.middle.defined()) {
    FillMiddle(&kept);
    FillGateAndUp(&kept);
  }
  const Grads grads{param_grads, accumulate};
  const at::Tensor grad_middle = FfnBackward(grad_hidden.flatten(0, 1), grads, &kept);
  return AttentionHalfBackward(grad_middle, grads, &kept).view_as(grad_hidden);
}

at::Tensor NativeBlock::FfnBackward(const at::Tensor& grad, const Grads& grads, Kept* kept) const {
  FillProduct(kept);
  WeightGradInto(grad, kept->product, grads.accumulate, grads.Into(p_.w2));
  kept->product = at::Tensor();
  at::Tensor gate = std::move(kept->gate), up = std::move(kept->up);  // Their gradients from here on.
  SwigluBackward(at::mm(grad, param(p_.w2)), &gate, &up);

  FillFfnInput(kept);
  WeightGradInto(gate, kept->ffn_in.y, grads.accumulate, grads.Into(p_.w1));
  WeightGradInto(up, kept->ffn_in.y, grads.accumulate, grads.Into(p_.w3));
  kept->ffn_in.y = at::Tensor();
  at::Tensor grad_in = at::mm(gate, param(p_.w1));
  grad_in.addmm_(up, param(p_.w3));
  gate = up = at::Tensor();

  at::Tensor grad_middle = RmsNormBackward(grad_in, kept->middle, kept->ffn_in.rstd, param(p_.ffn_norm),
                                           /*residual=*/grad, grads.accumulate, grads.Into(p_.ffn_norm));
  kept->middle = kept->ffn_in.rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::AttentionHalfBackward(const at::Tensor& grad, const Grads& grads, Kept* kept) const {
  WeightGradInto(grad, FlatTokens(kept->attended.out), grads.accumulate, grads.Into(p_.wo));
  FillQk(kept);
  AttentionInput of = AttentionBackward(at::mm(grad, param(p_.wo)).view(kept->attended.out.sizes()),
                                        kept->qkv, kept->attended);
  kept->qkv = {};
  kept->attended = {};
  of = UnrotateAndFlatten(std::move(of), grads, kept);

  FillAttentionInput(kept);
  const auto param_grads = [&](const at::Tensor& grad_out, int weight, int bias) {
    WeightGradInto(grad_out, kept->attention_in.y, grads.accumulate, grads.Into(weight));
    BiasGradInto(grad_out, grads.accumulate, grads.Into(bias));
  };
  param_grads(of.q, p_.wq, p_.bq);
  param_grads(of.k, p_.wk, p_.bk);
  param_grads(of.v, p_.wv, p_.bv);
  kept->attention_in.y = at::Tensor();
  at::Tensor grad_in = at::mm(of.q, param(p_.wq));
  grad_in.addmm_(of.k, param(p_.wk)).addmm_(of.v, param(p_.wv));
  of = {};

  return RmsNormBackward(grad_in, kept->x.flatten(0, 1), kept->attention_in.rstd, param(p_.attention_norm),
                         /*residual=*/grad, grads.accumulate, grads.Into(p_.attention_norm));
}

AttentionInput NativeBlock::UnrotateAndFlatten(AttentionInput grad, const Grads& grads, Kept* kept) const {
  RotateBackward(rotary_, &grad.q, &grad.k);
  if (config_.qk_norm) {
    const auto norm_backward = [&](const at::Tensor& of, const at::Tensor& raw, const at::Tensor& rstd,
                                   int weight) {
      return RmsNormBackward(of.flatten(0, 2), raw.flatten(0, 2), rstd, param(weight), /*residual=*/{},
                             grads.accumulate, grads.Into(weight))
          .view_as(of);
    };
    grad.q = norm_backward(grad.q, kept->raw_q, kept->q_rstd, p_.q_norm);
    grad.k = norm_backward(grad.k, kept->raw_k, kept->k_rstd, p_.k_norm);
    kept->raw_q = kept->raw_k = at::Tensor();
  }
  return {FlatTokens(grad.q), FlatTokens(grad.k), FlatTokens(grad.v)};
}

}  // namespace fsdpd
