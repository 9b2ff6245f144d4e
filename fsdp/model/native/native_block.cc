#include "fsdp/model/native/native_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "fsdp/model/native/cut_attention.h"

namespace fsdpd {
namespace {

at::Tensor FlatTokens(const at::Tensor& x) { return x.flatten(0, 1).flatten(1); }

// Of the model's, the heads whose queries the unit has the matrix of.
LlamaConfig WithOwnHeads(LlamaConfig config, const UnitFacts& facts) {
  for (const ParamFacts& param : facts.params) {
    if (param.name != "attention.wq" || !param.cut.cuts()) continue;
    config.heads /= param.cut.parts;
    config.kv_heads = std::max<int64_t>(1, config.kv_heads / param.cut.parts);
  }
  return config;
}

}  // namespace

NativeBlock::Params NativeBlock::Find(const NativeBlock& block) {
  const auto index = [&](const char* name) { return block.IndexOf(name); };
  return {index("attention_norm"),   index("attention.wq"), index("attention.bq"), index("attention.wk"),
          index("attention.bk"),     index("attention.wv"), index("attention.bv"), index("attention.q_norm"),
          index("attention.k_norm"), index("attention.wo"), index("ffn_norm"),     index("ffn.w1"),
          index("ffn.w3"),           index("ffn.w2")};
}

NativeBlock::NativeBlock(UnitFacts facts, at::ScalarType compute, const LlamaConfig& config, Rotary rotary)
    : NativeUnit(facts, compute, /*borrowed=*/0),
      config_(WithOwnHeads(config, facts)),
      rotary_(std::move(rotary)),
      p_(Find(*this)) {
  for (const int index : {p_.attention_norm, p_.wq, p_.wk, p_.wv, p_.wo, p_.ffn_norm, p_.w1, p_.w3, p_.w2}) {
    FSDPD_CHECK(index >= 0);
  }
}

bool NativeBlock::HasOthersRows(int index) const {
  const bool of_keys = index >= 0 && (index == p_.wk || index == p_.bk || index == p_.wv || index == p_.bv);
  return of_keys && param(index).size(0) > config_.kv_heads * config_.head_size;
}

// Ranks in a row have the query heads that read one key head.
at::Tensor NativeBlock::OwnRows(int index, const at::Tensor& of) const {
  if (!HasOthersRows(index) || !of.defined()) return of;
  const int64_t rows = config_.head_size, heads = of.size(0) / rows;
  const int64_t head = context().IndexIn(Group::kTensor) * heads / context().SizeOf(Group::kTensor);
  return of.narrow(0, head * rows, rows);
}

std::vector<at::Tensor> NativeBlock::ParamsOf(const std::vector<int>& indices) const {
  std::vector<at::Tensor> params;
  for (const int index : indices) params.push_back(OwnRows(index, param(index)));
  return params;
}

at::Tensor NativeBlock::AddProduct(const at::Tensor& residual, const at::Tensor& x, int matrix) const {
  const TokenParts parts(&context());
  if (parts.ranks() == 1) return AddLinear(residual, x, param(matrix));
  return parts.Sum(at::mm(x, param(matrix).t())).add_(residual).to(residual.scalar_type());
}

AttentionInput NativeBlock::Heads(const at::Tensor& qkv, at::IntArrayRef micro_batch) const {
  const int64_t query = config_.heads * config_.head_size, key = config_.kv_heads * config_.head_size;
  const auto part = [&](int64_t begin, int64_t width) {
    return qkv.narrow(1, begin, width).unflatten(1, {-1, config_.head_size}).unflatten(0, micro_batch);
  };
  return {part(0, query), part(query, key), part(query + key, key)};
}

AttentionInput NativeBlock::AttentionInputOf(const Kept& kept) const {
  AttentionInput heads = Heads(kept.qkv, kept.micro_batch);
  if (config_.qk_norm) {
    heads.q = kept.q;
    heads.k = kept.k;
  }
  return heads;
}

void NativeBlock::FillQk(Kept* kept) const {
  if (!config_.qk_norm || kept->q.defined()) return;
  const AttentionInput raw = Heads(kept->qkv, kept->micro_batch);
  const auto norm = [&](const at::Tensor& of, int weight, at::Tensor* rstd) {
    Normed normed = RmsNormForward(of.flatten(0, 2).contiguous(), param(weight), config_.norm_epsilon);
    *rstd = std::move(normed.rstd);
    return normed.y.view(of.sizes());
  };
  kept->q = norm(raw.q, p_.q_norm, &kept->q_rstd);
  kept->k = norm(raw.k, p_.k_norm, &kept->k_rstd);
  RotateForward(rotary_, kept->positions, {kept->q, kept->k});
}

AttentionOutput NativeBlock::Attend(const Kept& kept) const {
  const AttentionInput input = AttentionInputOf(kept);
  if (context().SizeOf(Group::kContext) == 1) return AttentionForward(input, kept.document_starts);
  FSDPD_CHECK(kept.document_starts.empty() && kept.positions.defined());
  return CutAttentionForward(input, &context());
}

AttentionInput NativeBlock::AttendBackward(const at::Tensor& grad, const Kept& kept) const {
  const AttentionInput input = AttentionInputOf(kept);
  if (context().SizeOf(Group::kContext) == 1)
    return AttentionBackward(grad, input, kept.attended, kept.document_starts);
  return CutAttentionBackward(grad, input, kept.attended, &context());
}

void NativeBlock::FillMiddle(Kept* kept) const {
  Normed in = RmsNormForward(kept->x.flatten(0, 1), param(p_.attention_norm), config_.norm_epsilon);
  kept->attention_rstd = std::move(in.rstd);
  in.y = TokenParts(&context()).Gather(in.y);
  kept->qkv = LinearForward(in.y, ParamsOf(Qkv()), ParamsOf(QkvBiases()));
  in.y = at::Tensor();  // Attention needs its room.
  if (config_.qk_norm) {
    FillQk(kept);
  } else {
    const AttentionInput heads = AttentionInputOf(*kept);
    RotateForward(rotary_, kept->positions, {heads.q, heads.k});
  }
  kept->attended = Attend(*kept);
  kept->middle = AddProduct(kept->x.flatten(0, 1), FlatTokens(kept->attended.out), p_.wo);
}

void NativeBlock::FillGateUp(Kept* kept) const {
  Normed in = RmsNormForward(kept->middle, param(p_.ffn_norm), config_.norm_epsilon);
  kept->ffn_rstd = std::move(in.rstd);
  kept->gate_up = LinearForward(TokenParts(&context()).Gather(in.y), ParamsOf(GateUp()));
}

void NativeBlock::DropAttention(Keep keep, Kept* kept) const {
  if (keep == Keep::kAll) return;
  kept->q = kept->k = kept->q_rstd = kept->k_rstd = at::Tensor();
  if (keep == Keep::kSelective) return;
  kept->qkv = kept->attention_rstd = at::Tensor();
  kept->attended = {};
}

void NativeBlock::DropFfn(Keep keep, Kept* kept) const {
  if (keep == Keep::kAll) return;
  kept->gate_up = kept->ffn_rstd = at::Tensor();
  if (keep == Keep::kInput) kept->middle = at::Tensor();
}

UnitOutput NativeBlock::Forward(int slot, const UnitInput& input, Keep keep) {
  const at::NoGradGuard no_grad;
  Kept kept;
  kept.x = input.hidden;
  const at::Tensor& whole = context().SizeOf(Group::kTensor) == 1 ? input.hidden : input.tokens;
  kept.micro_batch = {whole.size(0), whole.size(1)};
  FSDPD_CHECK(kept.micro_batch[1] * context().SizeOf(Group::kContext) == rotary_.cos.size(0));
  kept.positions = input.positions;
  kept.document_starts = input.document_starts;
  FillMiddle(&kept);
  DropAttention(keep, &kept);
  FillGateUp(&kept);
  const at::Tensor out = AddProduct(kept.middle, SwigluForward(kept.gate_up), p_.w2);
  if (keep != Keep::kNothing) {
    DropFfn(keep, &kept);
    kept_.Put(slot, std::move(kept));
  }
  return {out.view_as(input.hidden), at::Tensor()};
}

void NativeBlock::VisitKept(int slot, const std::function<void(at::Tensor*)>& visit) {
  Kept* kept = kept_.Find(slot);
  std::vector<at::Tensor*> tensors = {
      &kept->x,      &kept->attention_rstd, &kept->qkv,    &kept->q,        &kept->k,      &kept->q_rstd,
      &kept->k_rstd, &kept->attended.out,   &kept->middle, &kept->ffn_rstd, &kept->gate_up};
  const auto add = [&tensors](AttentionOutput* of) {
    tensors.insert(tensors.end(), {&of->log_sum_exp, &of->seed, &of->offset});
  };
  add(&kept->attended);
  for (AttentionOutput& part : kept->attended.parts) add(&part);
  for (at::Tensor* tensor : tensors) {
    if (tensor->defined()) visit(tensor);
  }
}

void NativeBlock::Compute(const MatrixGrads& product, const ParamGrads& grads) const {
  std::vector<int64_t> outputs;
  std::vector<at::Tensor> into, biases_into;
  const auto own = [&](int index) {
    if (index < 0) return at::Tensor();
    const at::Tensor& all = grads.into[index];
    if (all.defined() && !grads.accumulate && HasOthersRows(index)) all.zero_();
    return OwnRows(index, all);
  };
  for (const int matrix : product.matrices) {
    outputs.push_back(OwnRows(matrix, param(matrix)).size(0));
    into.push_back(own(matrix));
  }
  for (const int bias : product.biases) biases_into.push_back(own(bias));
  LinearGradsInto(product.grad_out, product.x, outputs, grads.accumulate, into, biases_into);
}

void NativeBlock::Add(MatrixGrads product, BackwardCall* call) const {
  if (call->when == WeightGrads::kNow) return Compute(product, call->grads);
  call->later.push_back(std::move(product));
}

at::Tensor NativeBlock::Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                                 WeightGrads when) {
  const at::NoGradGuard no_grad;
  CheckGrads(grads);
  Kept kept = kept_.Take(slot);
  if (!kept.middle.defined()) FillMiddle(&kept);
  if (!kept.gate_up.defined()) FillGateUp(&kept);
  BackwardCall call{grads, when, {}};
  const at::Tensor grad_middle = FfnBackward(grad_out.flatten(0, 1), &call, &kept);
  const at::Tensor grad_x = AttentionHalfBackward(grad_middle, &call, &kept).view_as(grad_out);
  if (when == WeightGrads::kLater) later_.Put(slot, std::move(call.later));
  return grad_x;
}

void NativeBlock::BackwardWeights(int slot, const ParamGrads& grads) {
  const at::NoGradGuard no_grad;
  CheckGrads(grads);
  for (MatrixGrads& product : later_.Take(slot)) {
    Compute(product, grads);
    product = {};  // Its tensors go before the next product's.
  }
}

at::Tensor NativeBlock::FfnBackward(const at::Tensor& grad, BackwardCall* call, Kept* kept) const {
  at::Tensor grad_sum = TokenParts(&context()).Gather(grad);
  at::Tensor product = at::mm(grad_sum, param(p_.w2));  // Its gradient, until SwigluBackward.
  at::Tensor gate_up = std::move(kept->gate_up);        // Their gradients after it.
  SwigluBackward(product, gate_up);
  Add({std::move(grad_sum), std::move(product), {p_.w2}, {}}, call);
  at::Tensor grad_middle = NormedBackward(grad, std::move(gate_up), kept->middle, kept->ffn_rstd,
                                          {p_.ffn_norm, GateUp(), /*biases=*/{}}, call);
  kept->middle = kept->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::AttentionHalfBackward(const at::Tensor& grad, BackwardCall* call, Kept* kept) const {
  at::Tensor grad_sum = TokenParts(&context()).Gather(grad);
  Add({grad_sum, FlatTokens(kept->attended.out), {p_.wo}, {}}, call);
  FillQk(kept);
  AttentionInput of = AttendBackward(at::mm(grad_sum, param(p_.wo)).view(kept->attended.out.sizes()), *kept);
  grad_sum = at::Tensor();
  kept->attended = {};
  at::Tensor grad_qkv = QkvBackward(std::move(of), *call, kept);
  return NormedBackward(grad, std::move(grad_qkv), kept->x.flatten(0, 1), kept->attention_rstd,
                        {p_.attention_norm, Qkv(), QkvBiases()}, call);
}

// The norm's output, which the matrices' gradients need, is made again where its gradient was.
at::Tensor NativeBlock::NormedBackward(const at::Tensor& grad, at::Tensor grad_outputs, const at::Tensor& x,
                                       const at::Tensor& rstd, const NormedParams& params,
                                       BackwardCall* call) const {
  const TokenParts parts(&context());
  at::Tensor normed = parts.Sum(LinearBackward(grad_outputs, ParamsOf(params.matrices)));  // Its gradient.
  normed = normed.to(x.scalar_type());
  at::Tensor grad_x = RmsNormBackward(normed, x, rstd, param(params.norm), /*residual=*/grad,
                                      call->grads.accumulate, call->Into(params.norm), /*y_into=*/normed);
  normed = parts.Gather(normed);
  Add({std::move(grad_outputs), std::move(normed), params.matrices, params.biases}, call);
  return grad_x;
}

// The rows of qkv have been read for the last time (but by the norms of q and k) and take the gradients.
at::Tensor NativeBlock::QkvBackward(AttentionInput grad, const BackwardCall& call, Kept* kept) const {
  const AttentionInput rows = Heads(kept->qkv, kept->micro_batch);
  rows.v.copy_(grad.v);
  if (!config_.qk_norm) {
    RotateBackward(rotary_, kept->positions, {grad.q, grad.k}, {rows.q, rows.k});
    return std::move(kept->qkv);
  }
  RotateBackward(rotary_, kept->positions, {grad.q, grad.k}, {grad.q, grad.k});
  const auto norm_backward = [&](const at::Tensor& of, const at::Tensor& raw, const at::Tensor& rstd,
                                 int weight) {
    raw.copy_(RmsNormBackward(of.flatten(0, 2), raw.flatten(0, 2).contiguous(), rstd, param(weight),
                              /*residual=*/{}, call.grads.accumulate, call.Into(weight))
                  .view(of.sizes()));
  };
  norm_backward(grad.q, rows.q, kept->q_rstd, p_.q_norm);
  norm_backward(grad.k, rows.k, kept->k_rstd, p_.k_norm);
  kept->q = kept->k = kept->q_rstd = kept->k_rstd = at::Tensor();
  return std::move(kept->qkv);
}

}  // namespace fsdpd
