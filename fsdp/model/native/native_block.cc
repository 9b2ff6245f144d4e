#include "fsdp/model/native/native_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "fsdp/model/native/context_attention.h"

namespace fsdpd {
namespace {

at::Tensor FlatTokens(const at::Tensor& x) { return x.flatten(0, 1).flatten(1); }

// Applies `move` to values and scales by row; the FP8 values as 16-bit pairs, since LibTorch does not move
// FP8.
template <typename Move>
Fp8 MovedRows(const Fp8& from, Move move) {
  return {move(from.values.view(at::kBFloat16)).view(at::kFloat8_e4m3fn),
          move(from.scales.unsqueeze(1)).squeeze(1)};
}

// The model's configuration with the heads of this rank's shard of the query matrix.
LlamaConfig WithOwnHeads(LlamaConfig config, const UnitFacts& facts) {
  for (const ParamFacts& param : facts.params) {
    if ((param.name != "attention.wq" && param.name != "attention.wq_b") || !param.partition.is_partitioned())
      continue;
    config.heads /= param.partition.parts;
    config.kv_heads = std::max<int64_t>(1, config.kv_heads / param.partition.parts);
  }
  return config;
}

}  // namespace

NativeBlock::Params NativeBlock::Find(const NativeBlock& block) {
  const auto index = [&](const char* name) { return block.IndexOf(name); };
  const bool experts = index("ffn.router") >= 0;
  return {index("attention_norm"),
          index("attention.wq"),
          index("attention.bq"),
          index("attention.wk"),
          index("attention.bk"),
          index("attention.wv"),
          index("attention.bv"),
          index("attention.q_norm"),
          index("attention.k_norm"),
          index("attention.wo"),
          index("ffn_norm"),
          index("ffn.router"),
          index("ffn.router_bias"),
          index(experts ? "ffn.experts.w1" : "ffn.w1"),
          index(experts ? "ffn.experts.w3" : "ffn.w3"),
          index(experts ? "ffn.experts.w2" : "ffn.w2"),
          index("ffn.shared.w1"),
          index("ffn.shared.w3"),
          index("ffn.shared.w2"),
          index("attention.wq_a"),
          index("attention.q_a_norm"),
          index("attention.wq_b"),
          index("attention.wkv_a"),
          index("attention.kv_a_norm"),
          index("attention.wkv_b")};
}

std::vector<int> NativeBlock::Qkv() const {
  if (!HasLatents()) return {p_.wq, p_.wk, p_.wv};
  return {p_.wq_b >= 0 ? p_.wq_a : p_.wq, p_.wkv_a};
}

std::vector<int> NativeBlock::QkvBiases() const {
  return HasLatents() ? std::vector<int>{} : std::vector<int>{p_.bq, p_.bk, p_.bv};
}

NativeBlock::NativeBlock(UnitFacts facts, at::ScalarType compute, const LlamaConfig& config, Rotary rotary)
    : NativeUnit(facts, compute, /*borrowed=*/0),
      config_(WithOwnHeads(config, facts)),
      rotary_(std::move(rotary)),
      p_(Find(*this)),
      latent_(config_, rotary_) {
  for (const int index : {p_.attention_norm, p_.wo, p_.ffn_norm, p_.w1, p_.w3, p_.w2}) {
    FSDPD_CHECK(index >= 0);
  }
  for (const int index : Qkv()) FSDPD_CHECK(index >= 0);
}

bool NativeBlock::HasRemoteRows(int index) const {
  const bool of_keys = index >= 0 && (index == p_.wk || index == p_.bk || index == p_.wv || index == p_.bv);
  return of_keys && param(index).size(0) > config_.kv_heads * config_.head_size;
}

// Adjacent ranks have the query heads that read the same key head.
at::Tensor NativeBlock::LocalRows(int index, const at::Tensor& of) const {
  if (!HasRemoteRows(index) || !of.defined()) return of;
  const int64_t rows = config_.head_size, heads = of.size(0) / rows;
  const int64_t head = context().IndexIn(Group::kTensor) * heads / context().SizeOf(Group::kTensor);
  return of.narrow(0, head * rows, rows);
}

std::vector<at::Tensor> NativeBlock::ParamsOf(const std::vector<int>& indices) const {
  std::vector<at::Tensor> params;
  for (const int index : indices) params.push_back(LocalRows(index, param(index)));
  return params;
}

Weights NativeBlock::WeightsOf(const std::vector<int>& matrices) const {
  if (!InFp8(matrices)) return ParamsOf(matrices);
  return Fp8Of(matrices);
}

std::vector<Fp8> NativeBlock::Fp8Of(const std::vector<int>& matrices) const {
  std::vector<Fp8> found;
  for (const int matrix : matrices)
    found.push_back({LocalRows(matrix, param(matrix)), LocalRows(matrix, scales(matrix))});
  return found;
}

at::Tensor NativeBlock::ScalesOf(const std::vector<int>& matrices) const {
  std::vector<at::Tensor> of;
  for (const int matrix : matrices) of.push_back(LocalRows(matrix, scales(matrix)));
  return JoinedScales(of);
}

bool NativeBlock::ReadsRounded(const std::vector<int>& matrices) const {
  return InFp8(matrices) && context().SizeOf(Group::kTensor) == 1;
}

at::Tensor NativeBlock::AddProduct(const at::Tensor& residual, const at::Tensor& x, int matrix) const {
  const TokenParts parts(&context());
  const Weights weights = WeightsOf({matrix});
  if (parts.ranks() == 1) return AddLinear(residual, x, weights);
  const at::Tensor products = at::empty({x.size(0), residual.size(1)}, x.options());
  const auto make = [&](int64_t begin, int64_t rows) {
    LinearForwardInto(x.narrow(0, begin, rows), weights, {}, products.narrow(0, begin, rows));
  };
  return parts.Sum(products, make, residual);
}

at::Tensor NativeBlock::NormedProduct(const at::Tensor& x, int norm, at::Tensor* rstd,
                                      const std::vector<int>& matrices,
                                      const std::vector<int>& biases) const {
  const Weights weights = WeightsOf(matrices);
  const Matrices with = ParamsOf(biases);
  const auto capacity = [&](int64_t rows) { return at::empty({rows, weights.all_outputs()}, x.options()); };
  if (ReadsRounded(matrices)) {
    Fp8Normed normed = Fp8RmsNormForward(x, param(norm), config_.norm_epsilon);
    *rstd = std::move(normed.rstd);
    at::Tensor outputs = capacity(x.size(0));
    LinearForwardInto(normed.y, weights, with, outputs);
    return outputs;
  }
  const TokenParts parts(&context());
  const at::Tensor all = parts.EmptyParts(x);
  *rstd = RmsNormForward(x, param(norm), config_.norm_epsilon, parts.Own(all)).rstd;
  at::Tensor outputs = capacity(all.size(0));
  parts.Gather(all, [&](int64_t begin, int64_t rows) {
    LinearForwardInto(all.narrow(0, begin, rows), weights, with, outputs.narrow(0, begin, rows));
  });
  return outputs;
}

at::Tensor NativeBlock::ProductBackward(const at::Tensor& grad_sum, int matrix) const {
  const Weights weights = Transposed(WeightsOf({matrix}));
  at::Tensor grad = at::empty({grad_sum.size(0), weights.inputs()}, grad_sum.options());
  TokenParts(&context()).Gather(grad_sum, [&](int64_t begin, int64_t rows) {
    LinearBackwardInto(grad_sum.narrow(0, begin, rows), weights, grad.narrow(0, begin, rows));
  });
  return grad;
}

AttentionInput NativeBlock::Heads(const at::Tensor& qkv, at::IntArrayRef micro_batch) const {
  const int64_t query = config_.heads * config_.head_size, key = config_.kv_heads * config_.head_size;
  const auto part = [&](int64_t begin, int64_t width) {
    return qkv.narrow(1, begin, width).unflatten(1, {-1, config_.head_size}).unflatten(0, micro_batch);
  };
  return {part(0, query), part(query, key), part(query + key, key)};
}

AttentionInput NativeBlock::AttentionInputOf(const SavedActivations& saved) const {
  AttentionInput heads = Heads(saved.qkv, saved.micro_batch);
  if (config_.qk_norm) {
    heads.q = saved.q;
    heads.k = saved.k;
  }
  return heads;
}

void NativeBlock::FillLatentHeads(SavedActivations* saved) const {
  LatentHeads heads = LatentHeadsOf(*saved);
  if (IsContextParallel() && !saved->samples.defined())
    saved->samples = latent_.SamplesOf(LatentRowsOf(*saved), &context());
  if (!heads.kv.defined()) latent_.MakeKeys(LatentRowsOf(*saved), LatentParamsOf(), &heads);
  if (!heads.q.defined()) latent_.MakeQueries(LatentRowsOf(*saved), LatentParamsOf(), &heads);
  saved->q = std::move(heads.q);
  saved->k = std::move(heads.kv);
  saved->q_rstd = std::move(heads.q_rstd);
  saved->k_rstd = std::move(heads.kv_rstd);
}

void NativeBlock::FillQk(SavedActivations* saved) const {
  if (HasLatents()) return FillLatentHeads(saved);
  if (!config_.qk_norm || saved->q.defined()) return;
  const AttentionInput raw = Heads(saved->qkv, saved->micro_batch);
  NormedHeads normed = NormAndRotate(rotary_, saved->positions, {raw.q, raw.k}, HeadNormsOf());
  saved->q = std::move(normed.transposed.q);
  saved->k = std::move(normed.transposed.k);
  saved->q_rstd = std::move(normed.q_rstd);
  saved->k_rstd = std::move(normed.k_rstd);
}

AttentionOutput NativeBlock::Attend(const SavedActivations& saved) const {
  if (HasLatents())
    return latent_.Attend(LatentRowsOf(saved), LatentHeadsOf(saved), saved.documents, context());
  const AttentionInput input = AttentionInputOf(saved);
  if (!IsContextParallel()) return AttentionForward(input, saved.documents);
  FSDPD_CHECK(saved.documents.empty() && saved.positions.defined());
  return ContextAttentionForward(input, &context());
}

AttentionInput NativeBlock::AttendBackward(at::Tensor grad, const SavedActivations& saved) const {
  if (HasLatents()) {
    return latent_.AttendBackward(std::move(grad), LatentRowsOf(saved), LatentHeadsOf(saved), saved.attended,
                                  saved.documents, context());
  }
  const AttentionInput input = AttentionInputOf(saved);
  if (!IsContextParallel()) return AttentionBackward(grad, input, saved.attended, saved.documents);
  return ContextAttentionBackward(grad, input, saved.attended, &context());
}

void NativeBlock::FillMiddle(SavedActivations* saved) const {
  saved->qkv =
      NormedProduct(saved->x.flatten(0, 1), p_.attention_norm, &saved->attention_rstd, Qkv(), QkvBiases());
  if (HasLatents()) latent_.Rotate(LatentRowsOf(*saved));
  if (config_.qk_norm || HasLatents()) {
    FillQk(saved);
  } else {
    const AttentionInput heads = AttentionInputOf(*saved);
    RotateForward(rotary_, saved->positions, {heads.q, heads.k});
  }
  saved->attended = Attend(*saved);
  if (HasLatents() && IsContextParallel()) saved->samples = saved->k = saved->k_rstd = at::Tensor();
  saved->middle = AddProduct(saved->x.flatten(0, 1), FlatTokens(saved->attended.out), p_.wo);
}

void NativeBlock::FillGateUp(SavedActivations* saved) const {
  if (!HasExperts()) {
    saved->gate_up = NormedProduct(saved->middle, p_.ffn_norm, &saved->ffn_rstd, GateUp(), /*biases=*/{});
    return;
  }
  Normed in = RmsNormForward(saved->middle, param(p_.ffn_norm), config_.norm_epsilon);
  saved->ffn_rstd = std::move(in.rstd);
  const at::Tensor all = TokenParts(&context()).Gather(in.y);
  in.y = at::Tensor();
  const at::Tensor read = ForExperts(all, config_.experts.per_token, &context(), [&] {
    if (HasShared()) saved->shared_gate_up = LinearForward(all, WeightsOf(SharedGateUp()));
    const Router router = {param(p_.router), param(p_.router_bias)};
    saved->routing = Route(all, router, config_.experts, saved->targets, &context());
  });
  saved->dispatch =
      MakeTokenDispatch(saved->routing, ChoiceWeights(saved->routing, config_.experts), &context());
  saved->gate_up = ExpertsOfTokens(read, *saved, GateUp());
}

// Rows are copies of tokens, so quantizing before the copy halves its memory traffic.
at::Tensor NativeBlock::ExpertsOfTokens(const at::Tensor& tokens, const SavedActivations& saved,
                                        const std::vector<int>& matrices) const {
  const at::Tensor& ends = LocalEnds(saved.routing, saved.dispatch);
  const auto move = [&](const at::Tensor& of) {
    return ToRows(of, saved.routing, saved.dispatch, &context());
  };
  if (!InFp8(matrices)) return ExpertsForward(move(tokens), ends, ParamsOf(matrices));
  return Fp8ExpertsForward(MovedRows(Fp8Rows(tokens), move), ends, Fp8Of(matrices));
}

at::Tensor NativeBlock::ExpertsOfRows(const at::Tensor& rows, const at::Tensor& ends, int matrix) const {
  if (!InFp8({matrix})) return ExpertsForward(rows, ends, {param(matrix)});
  return Fp8ExpertsForward(Fp8Rows(rows, /*by_column=*/{}, ends), ends, Fp8Of({matrix}));
}

// Rows that are quantized where they are read need no copy, unless they are sent to other ranks.
ExpertRows NativeBlock::RowsFor(const at::Tensor& tokens, const Routing& routing,
                                const TokenDispatch& dispatch, const std::vector<int>& matrices) const {
  const at::Tensor order = LocalOrder(routing, dispatch);
  if (InFp8(matrices) && order.defined()) return {tokens, order, config_.experts.per_token};
  return ToRows(tokens, routing, dispatch, &context());
}

std::vector<at::Tensor> NativeBlock::ExpertsInputGrads(const ExpertRows& grad_out, const at::Tensor& ends,
                                                       const std::vector<int>& matrices) const {
  if (!InFp8(matrices)) return ExpertsBackward(grad_out.from, ends, ParamsOf(matrices));
  return {Fp8ExpertsBackward(grad_out, ends, Fp8Of(matrices))};
}

void NativeBlock::ExpertsMatrixGrads(const ExpertRows& grad_out, const ExpertRows& rows,
                                     const at::Tensor& ends, const std::vector<int>& matrices,
                                     const BackwardCall& call) const {
  std::vector<at::Tensor> into;
  for (const int matrix : matrices) into.push_back(call.Into(matrix));
  const int64_t outputs = param(matrices.front()).size(1);
  const bool accumulate = call.grads.accumulate;
  if (InFp8(matrices)) return Fp8ExpertsGradsInto(grad_out, rows, ends, outputs, accumulate, into);
  ExpertsGradsInto(grad_out.from, rows.from, ends, outputs, accumulate, into);
}

at::Tensor NativeBlock::FfnOutput(const SavedActivations& saved) const {
  if (!HasExperts() && ReadsRounded({p_.w2}))
    return AddLinear(saved.middle, Fp8SwigluForward(saved.gate_up), WeightsOf({p_.w2}));
  if (!HasExperts()) return AddProduct(saved.middle, SwigluForward(saved.gate_up), p_.w2);
  const at::Tensor& ends = LocalEnds(saved.routing, saved.dispatch);
  at::Tensor rows = WeighedSwigluForward(saved.gate_up, saved.dispatch.weights, ends);
  rows = ExpertsOfRows(rows, ends, p_.w2);
  const TokenParts parts(&context());
  const bool parted = parts.ranks() > 1;
  std::function<void(at::Tensor*)> add;
  if (HasShared()) add = [&](at::Tensor* sum) { sum->add_(SharedOutput(saved.shared_gate_up)); };
  const at::Tensor sum =
      AtTokens({rows}, saved.routing, saved.dispatch, &context(), add, parted ? at::Tensor() : saved.middle);
  return parted ? parts.Sum(sum, saved.middle) : sum;
}

void NativeBlock::DropAttention(ActivationSaving saving, SavedActivations* saved) const {
  if (saving == ActivationSaving::kAll) return;
  saved->q = saved->k = saved->q_rstd = saved->k_rstd = at::Tensor();
  if (saving == ActivationSaving::kSelective) return;
  saved->qkv = saved->attention_rstd = at::Tensor();
  saved->attended = {};
}

void NativeBlock::DropFfn(ActivationSaving saving, SavedActivations* saved) const {
  if (saving == ActivationSaving::kAll) return;
  saved->gate_up = saved->ffn_rstd = at::Tensor();
  saved->routing = {};
  saved->dispatch = {};
  saved->shared_gate_up = at::Tensor();
  if (saving == ActivationSaving::kInput) saved->middle = at::Tensor();
}

UnitOutput NativeBlock::Forward(int slot, const UnitInput& input, ActivationSaving saving) {
  const at::NoGradGuard no_grad;
  SavedActivations saved;
  saved.x = input.hidden;
  const at::Tensor& whole = context().SizeOf(Group::kTensor) == 1 ? input.hidden : input.tokens;
  saved.micro_batch = {whole.size(0), whole.size(1)};
  FSDPD_CHECK(saved.micro_batch[1] * context().SizeOf(Group::kContext) == rotary_.cos.size(0));
  saved.positions = input.positions;
  saved.documents = input.documents;
  saved.targets = input.targets;
  FillMiddle(&saved);
  DropAttention(saving, &saved);
  FillGateUp(&saved);
  if (HasExperts() && context().IndexIn(Group::kTensor) == 0)
    context().AddRouting(RoutingSums(saved.routing, config_.experts), saved.routing.counts);
  const at::Tensor out = FfnOutput(saved);
  if (saving != ActivationSaving::kNothing) {
    DropFfn(saving, &saved);
    saved_.Put(slot, std::move(saved));
  }
  return {out.view_as(input.hidden), at::Tensor()};
}

void NativeBlock::VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) {
  SavedActivations* saved = saved_.Find(slot);
  std::vector<at::Tensor*> tensors = {
      &saved->x,      &saved->attention_rstd, &saved->qkv,    &saved->q,
      &saved->k,      &saved->q_rstd,         &saved->k_rstd, &saved->attended.out,
      &saved->middle, &saved->ffn_rstd,       &saved->gate_up};
  Routing& routing = saved->routing;
  TokenDispatch& dispatch = saved->dispatch;
  tensors.insert(tensors.end(), {&routing.logits, &routing.experts, &routing.counts, &routing.loads,
                                 &routing.counted, &dispatch.weights, &saved->shared_gate_up});
  for (RowPlaces* places : {&routing.rows, &dispatch.here, &dispatch.sent})
    tensors.insert(tensors.end(), {&places->order, &places->of_choice, &places->ends});
  const auto add = [&tensors](AttentionOutput* of) {
    tensors.insert(tensors.end(), {&of->log_sum_exp, &of->seed, &of->offset});
  };
  add(&saved->attended);
  for (AttentionOutput& part : saved->attended.parts) add(&part);
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
    if (all.defined() && !grads.accumulate && HasRemoteRows(index)) all.zero_();
    return LocalRows(index, all);
  };
  for (const int matrix : product.matrices) {
    outputs.push_back(LocalRows(matrix, param(matrix)).size(0));
    into.push_back(own(matrix));
  }
  for (const int bias : product.biases) biases_into.push_back(own(bias));
  if (product.grad_out_columns.defined() || product.x_columns.defined()) {
    const auto columns = [](const Fp8& made, const at::Tensor& of, const at::Tensor& largest) {
      return made.defined() ? made : Fp8Columns(of, largest);
    };
    FSDPD_CHECK(biases_into.empty());
    if (std::none_of(into.begin(), into.end(), [](const at::Tensor& of) { return of.defined(); })) return;
    return LinearGradsInto(columns(product.grad_out_columns, product.grad_out, {}),
                           columns(product.x_columns, product.x, product.x_largest), outputs,
                           grads.accumulate, into);
  }
  LinearGradsInto(product.grad_out, product.x, outputs, grads.accumulate, into, biases_into,
                  InFp8(product.matrices) ? Operands::kFp8 : Operands::kUnchanged, product.x_largest);
}

void NativeBlock::Add(MatrixGrads product, BackwardCall* call) const {
  if (call->when == WeightGrads::kNow) return Compute(product, call->grads);
  call->later.push_back(std::move(product));
}

void NativeBlock::AddOverlapped(MatrixGrads product, BackwardCall* call) const {
  const bool nothing_travels = TokenParts(&context()).ranks() == 1;
  if (nothing_travels || call->when == WeightGrads::kLater) return Add(std::move(product), call);
  call->overlapped.push_back(std::move(product));
}

at::Tensor NativeBlock::Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                                 WeightGrads when) {
  const at::NoGradGuard no_grad;
  CheckGrads(grads);
  SavedActivations saved = saved_.Take(slot);
  if (!saved.middle.defined()) FillMiddle(&saved);
  if (!saved.gate_up.defined()) FillGateUp(&saved);
  BackwardCall call{grads, when, {}, {}};
  const at::Tensor grad_middle = FfnBackward(grad_out.flatten(0, 1), &call, &saved);
  const at::Tensor grad_x = AttentionHalfBackward(grad_middle, &call, &saved).view_as(grad_out);
  if (when == WeightGrads::kLater) later_.Put(slot, std::move(call.later));
  return grad_x;
}

void NativeBlock::BackwardWeights(int slot, const ParamGrads& grads) {
  const at::NoGradGuard no_grad;
  CheckGrads(grads);
  for (MatrixGrads& product : later_.Take(slot)) {
    Compute(product, grads);
    product = {};  // Frees its tensors before the next product allocates.
  }
}

at::Tensor NativeBlock::SharedOutput(const at::Tensor& gate_up) const {
  const Weights weights = WeightsOf({p_.shared_w2});
  if (!weights.in_fp8()) return LinearForward(SwigluForward(gate_up), weights);
  at::Tensor out = at::empty({gate_up.size(0), weights.all_outputs()}, gate_up.options());
  LinearForwardInto(Fp8SwigluForward(gate_up), weights, {}, out);
  return out;
}

at::Tensor NativeBlock::SharedBackward(const at::Tensor& grad_sum, const BackwardCall& call,
                                       SavedActivations* saved) const {
  // Its gradient, until SwigluBackward.
  at::Tensor product = LinearBackward(grad_sum, Transposed(WeightsOf({p_.shared_w2})));
  at::Tensor gate_up = std::move(saved->shared_gate_up);
  SwigluBackward(product, gate_up);
  Compute({grad_sum, std::move(product), {p_.shared_w2}, {}}, call.grads);
  return gate_up;
}

// All expert gradients are per row; the gradients of their inputs are then summed by token. The norm's
// output, which router and experts read, is recomputed as in NormedBackward.
at::Tensor NativeBlock::ExpertsFfnBackward(const at::Tensor& grad, BackwardCall* call,
                                           SavedActivations* saved) const {
  const TokenParts parts(&context());
  const Routing routing = std::move(saved->routing);
  const TokenDispatch dispatch = std::move(saved->dispatch);
  const at::Tensor& ends = LocalEnds(routing, dispatch);
  const bool accumulate = call->grads.accumulate;
  const auto for_experts = [&](const at::Tensor& of, const std::function<void()>& work) {
    return ForExperts(of, config_.experts.per_token, &context(), work);
  };
  at::Tensor gate_up = std::move(saved->gate_up);  // Gradients of gate and up after SwigluBackward.
  at::Tensor grad_logits, shared_gate_up;
  {
    const at::Tensor grad_sum = parts.Gather(grad);
    const at::Tensor all = for_experts(grad_sum, [&] {
      if (HasShared()) shared_gate_up = SharedBackward(grad_sum, *call, saved);
    });
    const ExpertRows grad_rows = RowsFor(all, routing, dispatch, {p_.w2});
    const auto [product, grad_weights] = WeighedSwigluBackward(ExpertsInputGrads(grad_rows, ends, {p_.w2})[0],
                                                               gate_up, dispatch.weights, ends);
    ExpertsMatrixGrads(grad_rows, product, ends, {p_.w2}, *call);
    grad_logits = RouterBackward(routing, config_.experts,
                                 AtChoices(grad_weights, routing, dispatch, &context()), context());
  }
  const at::Tensor sum =
      AtTokens(ExpertsInputGrads(gate_up, ends, GateUp()), routing, dispatch, &context(),
               [&](at::Tensor* of) {
                 AddRouterInputGrad(grad_logits, param(p_.router), of);
                 if (HasShared())
                   of->add_(LinearBackward(shared_gate_up, Transposed(WeightsOf(SharedGateUp()))));
               },
               /*addend=*/{});
  at::Tensor normed = parts.Sum(sum);  // The gradient of the normed tokens.
  at::Tensor grad_middle =
      RmsNormBackward(normed, saved->middle, saved->ffn_rstd, param(p_.ffn_norm), /*residual=*/grad,
                      accumulate, call->Into(p_.ffn_norm), /*y_into=*/normed);
  normed = parts.Gather(normed);
  const at::Tensor all = for_experts(normed, [&] {
    if (call->Into(p_.router).defined())
      GradInto(RouterMatrixGrad(grad_logits, normed), accumulate, call->Into(p_.router));
    if (HasShared()) Compute({shared_gate_up, normed, SharedGateUp(), {}}, call->grads);
  });
  ExpertsMatrixGrads(gate_up, RowsFor(all, routing, dispatch, GateUp()), ends, GateUp(), *call);
  saved->middle = saved->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::Fp8FfnBackward(const at::Tensor& grad, BackwardCall* call,
                                       SavedActivations* saved) const {
  Fp8SwigluGrads of = Fp8SwigluBackward(ProductBackward(grad, p_.w2), saved->gate_up, ScalesOf(GateUp()));
  saved->gate_up = at::Tensor();
  MatrixGrads product = {grad, {}, {p_.w2}, {}};
  product.x_columns = std::move(of.product_columns);
  Add(std::move(product), call);
  at::Tensor grad_middle =
      NormedBackward(grad, {{}, std::move(of.gate_up), std::move(of.gate_up_columns)}, saved->middle,
                     saved->ffn_rstd, {p_.ffn_norm, GateUp(), /*biases=*/{}}, call);
  saved->middle = saved->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::FfnBackward(const at::Tensor& grad, BackwardCall* call,
                                    SavedActivations* saved) const {
  if (HasExperts()) return ExpertsFfnBackward(grad, call, saved);
  if (ReadsRounded({p_.w2}) && ReadsRounded(GateUp())) return Fp8FfnBackward(grad, call, saved);
  at::Tensor grad_sum = TokenParts(&context()).PartsWithOwn(grad);
  at::Tensor product = ProductBackward(grad_sum, p_.w2);  // Its gradient, until SwigluBackward.
  at::Tensor gate_up = std::move(saved->gate_up);         // Gradients after it.
  SwigluBackward(product, gate_up);
  AddOverlapped({std::move(grad_sum), std::move(product), {p_.w2}, {}}, call);
  at::Tensor grad_middle = NormedBackward(grad, {std::move(gate_up)}, saved->middle, saved->ffn_rstd,
                                          {p_.ffn_norm, GateUp(), /*biases=*/{}}, call);
  saved->middle = saved->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::AttentionHalfBackward(const at::Tensor& grad, BackwardCall* call,
                                              SavedActivations* saved) const {
  at::Tensor grad_sum = TokenParts(&context()).PartsWithOwn(grad);
  at::Tensor grad_out = ProductBackward(grad_sum, p_.wo).view(saved->attended.out.sizes());
  AddOverlapped({std::move(grad_sum), FlatTokens(saved->attended.out), {p_.wo}, {}}, call);
  FillQk(saved);
  AttentionInput of = AttendBackward(std::move(grad_out), *saved);
  saved->attended = {};
  at::Tensor grad_qkv =
      HasLatents() ? LatentBackward(std::move(of), call, saved) : QkvBackward(std::move(of), *call, saved);
  return NormedBackward(grad, {std::move(grad_qkv)}, saved->x.flatten(0, 1), saved->attention_rstd,
                        {p_.attention_norm, Qkv(), QkvBiases()}, call);
}

// The norm's output, which the gradients of the matrices need, is recomputed in the memory of its gradient.
at::Tensor NativeBlock::NormedBackward(const at::Tensor& grad, OutputGrads grad_outputs, const at::Tensor& x,
                                       const at::Tensor& rstd, const NormedParams& params,
                                       BackwardCall* call) const {
  const TokenParts parts(&context());
  Weights weights = Transposed(WeightsOf(params.matrices));
  const bool rounded = grad_outputs.rows.defined();
  const int64_t tokens = (rounded ? grad_outputs.rows.values : grad_outputs.plain).size(0);
  at::Tensor all = at::empty({tokens, x.size(1)}, x.options());
  const at::Tensor grad_normed = parts.Sum(all, [&](int64_t begin, int64_t rows) {
    const at::Tensor into = all.narrow(0, begin, rows);
    if (rounded) return LinearBackwardInto(grad_outputs.rows.Part(begin, rows), weights, into);
    LinearBackwardInto(grad_outputs.plain.narrow(0, begin, rows), weights, into);
  });
  grad_outputs.rows = weights.transposed = {};
  at::Tensor largest;
  at::Tensor grad_x = RmsNormBackward(grad_normed, x, rstd, param(params.norm), /*residual=*/grad,
                                      call->grads.accumulate, call->Into(params.norm), parts.Own(all),
                                      ReadsRounded(params.matrices) ? &largest : nullptr);
  parts.GatherWhile(all, [&] {
    for (MatrixGrads& product : call->overlapped) Compute(product, call->grads);
    call->overlapped.clear();
  });
  Add({std::move(grad_outputs.plain),
       std::move(all),
       params.matrices,
       params.biases,
       std::move(grad_outputs.columns),
       {},
       std::move(largest)},
      call);
  return grad_x;
}

// Frees the gradients before each product when the next product has been computed.
at::Tensor NativeBlock::LatentBackward(AttentionInput grad, BackwardCall* call,
                                       SavedActivations* saved) const {
  const bool accumulate = call->grads.accumulate;
  const auto add = [&](LatentProduct of, int matrix) {
    Add({std::move(of.grad_out), std::move(of.x), {matrix}, {}}, call);
  };
  add(latent_.KeysBackward(grad.k, grad.v, LatentRowsOf(*saved), LatentHeadsOf(*saved), LatentParamsOf(),
                           accumulate, call->Into(p_.kv_a_norm)),
      p_.wkv_b);
  if (IsContextParallel()) latent_.SamplesBackward(LatentRowsOf(*saved), &context());
  saved->samples = at::Tensor();
  grad.k = grad.v = saved->k = saved->k_rstd = at::Tensor();
  LatentProduct queries = latent_.QueriesBackward(grad.q, LatentRowsOf(*saved), LatentHeadsOf(*saved),
                                                  LatentParamsOf(), accumulate, call->Into(p_.q_a_norm));
  if (queries.x.defined()) add(std::move(queries), p_.wq_b);
  saved->q = saved->q_rstd = at::Tensor();
  return std::move(saved->qkv);
}

// The rows of qkv are no longer needed (except by the norms of q and k) and are overwritten with the
// gradients.
at::Tensor NativeBlock::QkvBackward(AttentionInput grad, const BackwardCall& call,
                                    SavedActivations* saved) const {
  const AttentionInput rows = Heads(saved->qkv, saved->micro_batch);
  rows.v.copy_(grad.v);
  if (!config_.qk_norm) {
    RotateBackward(rotary_, saved->positions, {grad.q, grad.k}, {rows.q, rows.k});
    return std::move(saved->qkv);
  }
  NormAndRotateBackward(rotary_, saved->positions, {grad.q, grad.k}, {{}, saved->q_rstd, saved->k_rstd},
                        HeadNormsOf(), {call.Into(p_.q_norm), call.Into(p_.k_norm), call.grads.accumulate},
                        {rows.q, rows.k});
  saved->q = saved->k = saved->q_rstd = saved->k_rstd = at::Tensor();
  return std::move(saved->qkv);
}

}  // namespace fsdpd
