#include "fsdp/model/native/native_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "fsdp/model/native/context_attention.h"
#include "fsdp/model/native/native_fp8_ops.h"
#include "fsdp/model/native/token_parts.h"

namespace fsdpd {
namespace {

at::Tensor FlatTokens(const at::Tensor& x) { return x.flatten(0, 1).flatten(1); }

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
    : NativeProducts(std::move(facts), compute, config),
      rotary_(std::move(rotary)),
      p_(Find(*this)),
      latent_(this->config(), rotary_) {
  for (const int index : {p_.attention_norm, p_.wo, p_.ffn_norm, p_.w1, p_.w3, p_.w2}) {
    FSDPD_CHECK(index >= 0);
  }
  for (const int index : Qkv()) FSDPD_CHECK(index >= 0);
}

AttentionInput NativeBlock::Heads(const at::Tensor& qkv, at::IntArrayRef micro_batch) const {
  const int64_t query = config().heads * config().head_size, key = config().kv_heads * config().head_size;
  const auto part = [&](int64_t begin, int64_t width) {
    return qkv.narrow(1, begin, width).unflatten(1, {-1, config().head_size}).unflatten(0, micro_batch);
  };
  return {part(0, query), part(query, key), part(query + key, key)};
}

AttentionInput NativeBlock::AttentionInputOf(const SavedActivations& saved) const {
  AttentionInput heads = Heads(saved.qkv, saved.micro_batch);
  if (config().qk_norm) {
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
  if (!config().qk_norm || saved->q.defined()) return;
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
      NormedProduct(saved->x.flatten(0, 1), AttentionInputs(), {&saved->attention_rstd, &saved->qkv_low});
  if (HasLatents()) latent_.Rotate(LatentRowsOf(*saved));
  if (config().qk_norm || HasLatents()) {
    FillQk(saved);
  } else {
    const AttentionInput heads = AttentionInputOf(*saved);
    RotateForward(rotary_, saved->positions, {heads.q, heads.k});
  }
  saved->attended = Attend(*saved);
  if (HasLatents() && IsContextParallel()) saved->samples = saved->k = saved->k_rstd = at::Tensor();
  saved->middle = AddProduct(saved->x.flatten(0, 1), FlatTokens(saved->attended.out), p_.wo, &saved->wo_low);
}

void NativeBlock::FillGateUp(SavedActivations* saved) const {
  if (!HasExperts()) {
    saved->gate_up = NormedProduct(saved->middle, FfnInputs(), {&saved->ffn_rstd, &saved->gate_up_low});
    return;
  }
  Normed in = RmsNormForward(saved->middle, param(p_.ffn_norm), config().norm_epsilon);
  saved->ffn_rstd = std::move(in.rstd);
  const at::Tensor all = TokenParts(&context()).Gather(in.y);
  in.y = at::Tensor();
  const at::Tensor read = ForExperts(all, config().experts.per_token, &context(), [&] {
    if (HasShared())
      saved->shared_gate_up = LinearForward(all, WeightsOf(SharedGateUp()), {}, &saved->shared_gate_up_low);
    const Router router = {param(p_.router), param(p_.router_bias)};
    saved->routing = Route(all, router, config().experts, saved->targets, &context());
  });
  saved->dispatch =
      MakeTokenDispatch(saved->routing, ChoiceWeights(saved->routing, config().experts), &context());
  saved->gate_up = ExpertsOfTokens(read, saved->routing, saved->dispatch, GateUp());
}

at::Tensor NativeBlock::FfnOutput(SavedActivations* of) const {
  const SavedActivations& saved = *of;
  if (!HasExperts() && ReadsRounded({p_.w2}))
    return AddLinear(saved.middle, Fp8SwigluForward(saved.gate_up), WeightsOf({p_.w2}));
  if (!HasExperts()) {
    const at::Tensor product =
        SwigluAddsWide(GateUp(), p_.w2)
            ? AdaptedSwigluForward(saved.gate_up, {WeightsOf(GateUp()), saved.gate_up_low})
            : SwigluForward(saved.gate_up);
    return AddProduct(saved.middle, product, p_.w2, &of->w2_low);
  }
  const at::Tensor& ends = LocalEnds(saved.routing, saved.dispatch);
  at::Tensor rows = WeighedSwigluForward(saved.gate_up, saved.dispatch.weights, ends);
  rows = ExpertsOfRows(rows, ends, p_.w2);
  const TokenParts parts(&context());
  const bool parted = parts.ranks() > 1;
  std::function<void(at::Tensor*)> add;
  if (HasShared()) add = [&](at::Tensor* sum) { sum->add_(SharedOutput(of)); };
  const at::Tensor sum =
      AtTokens({rows}, saved.routing, saved.dispatch, &context(), add, parted ? at::Tensor() : saved.middle);
  return parted ? parts.Sum(sum, saved.middle) : sum;
}

void NativeBlock::DropAttention(ActivationSaving saving, SavedActivations* saved) const {
  if (saving == ActivationSaving::kAll) return;
  saved->q = saved->k = saved->q_rstd = saved->k_rstd = at::Tensor();
  if (saving == ActivationSaving::kSelective) return;
  saved->qkv = saved->attention_rstd = saved->qkv_low = at::Tensor();
  saved->attended = {};
}

void NativeBlock::DropFfn(ActivationSaving saving, SavedActivations* saved) const {
  if (saving == ActivationSaving::kAll) return;
  saved->gate_up = saved->ffn_rstd = saved->gate_up_low = at::Tensor();
  saved->routing = {};
  saved->dispatch = {};
  saved->shared_gate_up = saved->shared_gate_up_low = at::Tensor();
  if (saving == ActivationSaving::kInput) saved->middle = saved->wo_low = at::Tensor();
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
    context().AddRouting(RoutingSums(saved.routing, config().experts), saved.routing.counts);
  const at::Tensor out = FfnOutput(&saved);
  if (saving != ActivationSaving::kNothing) {
    DropFfn(saving, &saved);
    saved_.Put(slot, std::move(saved));
  }
  return {out.view_as(input.hidden), at::Tensor()};
}

void NativeBlock::VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) {
  SavedActivations* saved = saved_.Find(slot);
  std::vector<at::Tensor*> tensors = {&saved->x,
                                      &saved->attention_rstd,
                                      &saved->qkv,
                                      &saved->q,
                                      &saved->k,
                                      &saved->q_rstd,
                                      &saved->k_rstd,
                                      &saved->attended.out,
                                      &saved->middle,
                                      &saved->ffn_rstd,
                                      &saved->gate_up,
                                      &saved->qkv_low,
                                      &saved->wo_low,
                                      &saved->gate_up_low,
                                      &saved->w2_low,
                                      &saved->shared_gate_up_low,
                                      &saved->shared_w2_low};
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

at::Tensor NativeBlock::SharedOutput(SavedActivations* saved) const {
  const at::Tensor& gate_up = saved->shared_gate_up;
  const Weights weights = WeightsOf({p_.shared_w2});
  if (!weights.in_fp8()) return LinearForward(SwigluForward(gate_up), weights, {}, &saved->shared_w2_low);
  at::Tensor out = at::empty({gate_up.size(0), weights.all_outputs()}, gate_up.options());
  LinearForwardInto(Fp8SwigluForward(gate_up), weights, {}, out);
  return out;
}

at::Tensor NativeBlock::SharedBackward(const at::Tensor& grad_sum, const BackwardCall& call,
                                       SavedActivations* saved) const {
  // Its gradient, until SwigluBackward.
  AdapterBackward adapters = AdapterBackwardOf({p_.shared_w2}, std::move(saved->shared_w2_low), call.grads);
  at::Tensor product = LinearBackward(grad_sum, Transposed(WeightsOf({p_.shared_w2})), adapters);
  at::Tensor gate_up = std::move(saved->shared_gate_up);
  SwigluBackward(product, gate_up);
  Compute({grad_sum, std::move(product), {p_.shared_w2}, {}, std::move(adapters.grad_low)}, call.grads);
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
    return ForExperts(of, config().experts.per_token, &context(), work);
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
    grad_logits = RouterBackward(routing, config().experts,
                                 AtChoices(grad_weights, routing, dispatch, &context()), context());
  }
  AdapterBackward adapters =
      AdapterBackwardOf(SharedGateUp(), std::move(saved->shared_gate_up_low), call->grads);
  const at::Tensor sum =
      AtTokens(ExpertsInputGrads(gate_up, ends, GateUp()), routing, dispatch, &context(),
               [&](at::Tensor* of) {
                 AddRouterInputGrad(grad_logits, param(p_.router), of);
                 if (HasShared())
                   of->add_(LinearBackward(shared_gate_up, Transposed(WeightsOf(SharedGateUp())), adapters));
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
    if (HasShared()) Compute({shared_gate_up, normed, SharedGateUp(), {}, adapters.grad_low}, call->grads);
  });
  ExpertsMatrixGrads(gate_up, RowsFor(all, routing, dispatch, GateUp()), ends, GateUp(), *call);
  saved->middle = saved->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::Fp8FfnBackward(const at::Tensor& grad, BackwardCall* call,
                                       SavedActivations* saved) const {
  Fp8SwigluGrads of = Fp8SwigluBackward(LinearBackward(grad, Transposed(WeightsOf({p_.w2}))), saved->gate_up,
                                        ScalesOf(GateUp()));
  saved->gate_up = at::Tensor();
  MatrixGrads product = {grad, {}, {p_.w2}, {}};
  product.x_columns = std::move(of.product_columns);
  Add(std::move(product), call);
  at::Tensor grad_middle =
      NormedBackward(grad, {{}, std::move(of.gate_up), std::move(of.gate_up_columns)}, saved->middle,
                     {&saved->ffn_rstd, &saved->gate_up_low}, FfnInputs(), call);
  saved->middle = saved->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::FfnBackward(const at::Tensor& grad, BackwardCall* call,
                                    SavedActivations* saved) const {
  if (HasExperts()) return ExpertsFfnBackward(grad, call, saved);
  if (ReadsRounded({p_.w2}) && ReadsRounded(GateUp())) return Fp8FfnBackward(grad, call, saved);
  at::Tensor grad_sum = TokenParts(&context()).PartsWithOwn(grad);
  AdapterBackward adapters = AdapterBackwardOf({p_.w2}, std::move(saved->w2_low), call->grads);
  const bool adds_wide = SwigluAddsWide(GateUp(), p_.w2);
  at::Tensor product =
      ProductBackward(grad_sum, p_.w2, &adapters, adds_wide);  // Its gradient, until SwiGLU's.
  at::Tensor gate_up = std::move(saved->gate_up);              // Gradients after it.
  if (adds_wide) {
    AdaptedSwigluBackward(product, gate_up, {WeightsOf(GateUp()), saved->gate_up_low},
                          {WeightsOf({p_.w2}), adapters.grad_low});
  } else {
    SwigluBackward(product, gate_up);
  }
  AddOverlapped({std::move(grad_sum), std::move(product), {p_.w2}, {}, std::move(adapters.grad_low)}, call);
  at::Tensor grad_middle = NormedBackward(grad, {std::move(gate_up)}, saved->middle,
                                          {&saved->ffn_rstd, &saved->gate_up_low}, FfnInputs(), call);
  saved->middle = saved->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::AttentionHalfBackward(const at::Tensor& grad, BackwardCall* call,
                                              SavedActivations* saved) const {
  at::Tensor grad_sum = TokenParts(&context()).PartsWithOwn(grad);
  AdapterBackward adapters = AdapterBackwardOf({p_.wo}, std::move(saved->wo_low), call->grads);
  at::Tensor grad_out = ProductBackward(grad_sum, p_.wo, &adapters).view(saved->attended.out.sizes());
  AddOverlapped(
      {std::move(grad_sum), FlatTokens(saved->attended.out), {p_.wo}, {}, std::move(adapters.grad_low)},
      call);
  FillQk(saved);
  AttentionInput of = AttendBackward(std::move(grad_out), *saved);
  saved->attended = {};
  at::Tensor grad_qkv =
      HasLatents() ? LatentBackward(std::move(of), call, saved) : QkvBackward(std::move(of), *call, saved);
  return NormedBackward(grad, {std::move(grad_qkv)}, saved->x.flatten(0, 1),
                        {&saved->attention_rstd, &saved->qkv_low}, AttentionInputs(), call);
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
  if (!config().qk_norm) {
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
