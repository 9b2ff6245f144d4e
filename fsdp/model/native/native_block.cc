#include "fsdp/model/native/native_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "fsdp/model/native/cut_attention.h"

namespace fsdpd {
namespace {

at::Tensor FlatTokens(const at::Tensor& x) { return x.flatten(0, 1).flatten(1); }

// Numbers and scales, each the way that `move` goes with a row; numbers by two, as LibTorch moves no FP8.
template <typename Move>
Fp8 MovedRows(const Fp8& from, Move move) {
  return {move(from.values.view(at::kBFloat16)).view(at::kFloat8_e4m3fn),
          move(from.scales.unsqueeze(1)).squeeze(1)};
}

// Of the model's, the heads whose queries the unit has the matrix of.
LlamaConfig WithOwnHeads(LlamaConfig config, const UnitFacts& facts) {
  for (const ParamFacts& param : facts.params) {
    if ((param.name != "attention.wq" && param.name != "attention.wq_b") || !param.cut.cuts()) continue;
    config.heads /= param.cut.parts;
    config.kv_heads = std::max<int64_t>(1, config.kv_heads / param.cut.parts);
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

Weights NativeBlock::WeightsOf(const std::vector<int>& matrices) const {
  if (!InFp8(matrices)) return ParamsOf(matrices);
  return Fp8Of(matrices);
}

std::vector<Fp8> NativeBlock::Fp8Of(const std::vector<int>& matrices) const {
  std::vector<Fp8> found;
  for (const int matrix : matrices)
    found.push_back({OwnRows(matrix, param(matrix)), OwnRows(matrix, scales(matrix))});
  return found;
}

at::Tensor NativeBlock::ScalesOf(const std::vector<int>& matrices) const {
  std::vector<at::Tensor> of;
  for (const int matrix : matrices) of.push_back(OwnRows(matrix, scales(matrix)));
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
  const auto room = [&](int64_t rows) { return at::empty({rows, weights.all_outputs()}, x.options()); };
  if (ReadsRounded(matrices)) {
    Fp8Normed normed = Fp8RmsNormForward(x, param(norm), config_.norm_epsilon);
    *rstd = std::move(normed.rstd);
    at::Tensor outputs = room(x.size(0));
    LinearForwardInto(normed.y, weights, with, outputs);
    return outputs;
  }
  const TokenParts parts(&context());
  const at::Tensor all = parts.RoomFor(x);
  *rstd = RmsNormForward(x, param(norm), config_.norm_epsilon, parts.Own(all)).rstd;
  at::Tensor outputs = room(all.size(0));
  parts.Gather(all, [&](int64_t begin, int64_t rows) {
    LinearForwardInto(all.narrow(0, begin, rows), weights, with, outputs.narrow(0, begin, rows));
  });
  return outputs;
}

at::Tensor NativeBlock::ProductBackward(const at::Tensor& grad_sum, int matrix) const {
  const Weights weights = Turned(WeightsOf({matrix}));
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

AttentionInput NativeBlock::AttentionInputOf(const Kept& kept) const {
  AttentionInput heads = Heads(kept.qkv, kept.micro_batch);
  if (config_.qk_norm) {
    heads.q = kept.q;
    heads.k = kept.k;
  }
  return heads;
}

void NativeBlock::FillLatentHeads(Kept* kept) const {
  LatentHeads heads = LatentHeadsOf(*kept);
  if (SharesSamples() && !kept->samples.defined())
    kept->samples = latent_.SamplesOf(LatentRowsOf(*kept), &context());
  if (!heads.kv.defined()) latent_.MakeKeys(LatentRowsOf(*kept), LatentParamsOf(), &heads);
  if (!heads.q.defined()) latent_.MakeQueries(LatentRowsOf(*kept), LatentParamsOf(), &heads);
  kept->q = std::move(heads.q);
  kept->k = std::move(heads.kv);
  kept->q_rstd = std::move(heads.q_rstd);
  kept->k_rstd = std::move(heads.kv_rstd);
}

void NativeBlock::FillQk(Kept* kept) const {
  if (HasLatents()) return FillLatentHeads(kept);
  if (!config_.qk_norm || kept->q.defined()) return;
  const AttentionInput raw = Heads(kept->qkv, kept->micro_batch);
  NormedHeads normed = NormAndRotate(rotary_, kept->positions, {raw.q, raw.k}, HeadNormsOf());
  kept->q = std::move(normed.turned.q);
  kept->k = std::move(normed.turned.k);
  kept->q_rstd = std::move(normed.q_rstd);
  kept->k_rstd = std::move(normed.k_rstd);
}

AttentionOutput NativeBlock::Attend(const Kept& kept) const {
  if (HasLatents()) return latent_.Attend(LatentRowsOf(kept), LatentHeadsOf(kept), kept.documents, context());
  const AttentionInput input = AttentionInputOf(kept);
  if (!SharesSamples()) return AttentionForward(input, kept.documents);
  FSDPD_CHECK(kept.documents.empty() && kept.positions.defined());
  return CutAttentionForward(input, &context());
}

AttentionInput NativeBlock::AttendBackward(at::Tensor grad, const Kept& kept) const {
  if (HasLatents()) {
    return latent_.AttendBackward(std::move(grad), LatentRowsOf(kept), LatentHeadsOf(kept), kept.attended,
                                  kept.documents, context());
  }
  const AttentionInput input = AttentionInputOf(kept);
  if (!SharesSamples()) return AttentionBackward(grad, input, kept.attended, kept.documents);
  return CutAttentionBackward(grad, input, kept.attended, &context());
}

void NativeBlock::FillMiddle(Kept* kept) const {
  kept->qkv =
      NormedProduct(kept->x.flatten(0, 1), p_.attention_norm, &kept->attention_rstd, Qkv(), QkvBiases());
  if (HasLatents()) latent_.Rotate(LatentRowsOf(*kept));
  if (config_.qk_norm || HasLatents()) {
    FillQk(kept);
  } else {
    const AttentionInput heads = AttentionInputOf(*kept);
    RotateForward(rotary_, kept->positions, {heads.q, heads.k});
  }
  kept->attended = Attend(*kept);
  if (HasLatents() && SharesSamples()) kept->samples = kept->k = kept->k_rstd = at::Tensor();
  kept->middle = AddProduct(kept->x.flatten(0, 1), FlatTokens(kept->attended.out), p_.wo);
}

void NativeBlock::FillGateUp(Kept* kept) const {
  if (!HasExperts()) {
    kept->gate_up = NormedProduct(kept->middle, p_.ffn_norm, &kept->ffn_rstd, GateUp(), /*biases=*/{});
    return;
  }
  Normed in = RmsNormForward(kept->middle, param(p_.ffn_norm), config_.norm_epsilon);
  kept->ffn_rstd = std::move(in.rstd);
  const at::Tensor all = TokenParts(&context()).Gather(in.y);
  in.y = at::Tensor();
  const at::Tensor read = ForExperts(all, config_.experts.per_token, &context(), [&] {
    if (HasShared()) kept->shared_gate_up = LinearForward(all, WeightsOf(SharedGateUp()));
    const Router router = {param(p_.router), param(p_.router_bias)};
    kept->routing = Route(all, router, config_.experts, kept->targets, &context());
  });
  kept->passage = MakePassage(kept->routing, ChoiceWeights(kept->routing, config_.experts), &context());
  kept->gate_up = ExpertsOfTokens(read, *kept, GateUp());
}

// Rows are copies of tokens, and what is rounded once is moved in half the bytes.
at::Tensor NativeBlock::ExpertsOfTokens(const at::Tensor& tokens, const Kept& kept,
                                        const std::vector<int>& matrices) const {
  const at::Tensor& ends = EndsHere(kept.routing, kept.passage);
  const auto move = [&](const at::Tensor& of) { return ToRows(of, kept.routing, kept.passage, &context()); };
  if (!InFp8(matrices)) return ExpertsForward(move(tokens), ends, ParamsOf(matrices));
  return Fp8ExpertsForward(MovedRows(Fp8Rows(tokens), move), ends, Fp8Of(matrices));
}

at::Tensor NativeBlock::ExpertsOfRows(const at::Tensor& rows, const at::Tensor& ends, int matrix) const {
  if (!InFp8({matrix})) return ExpertsForward(rows, ends, {param(matrix)});
  return Fp8ExpertsForward(Fp8Rows(rows, /*by_column=*/{}, ends), ends, Fp8Of({matrix}));
}

// Rows that are rounded where they are read are not copied, but where they go to others.
ExpertRows NativeBlock::RowsFor(const at::Tensor& tokens, const Routing& routing, const Passage& passage,
                                const std::vector<int>& matrices) const {
  const at::Tensor order = OrderHere(routing, passage);
  if (InFp8(matrices) && order.defined()) return {tokens, order, config_.experts.per_token};
  return ToRows(tokens, routing, passage, &context());
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

at::Tensor NativeBlock::FfnOutput(const Kept& kept) const {
  if (!HasExperts() && ReadsRounded({p_.w2}))
    return AddLinear(kept.middle, Fp8SwigluForward(kept.gate_up), WeightsOf({p_.w2}));
  if (!HasExperts()) return AddProduct(kept.middle, SwigluForward(kept.gate_up), p_.w2);
  const at::Tensor& ends = EndsHere(kept.routing, kept.passage);
  at::Tensor rows = WeighedSwigluForward(kept.gate_up, kept.passage.weights, ends);
  rows = ExpertsOfRows(rows, ends, p_.w2);
  const TokenParts parts(&context());
  const bool parted = parts.ranks() > 1;
  std::function<void(at::Tensor*)> add;
  if (HasShared()) add = [&](at::Tensor* sum) { sum->add_(SharedOutput(kept.shared_gate_up)); };
  const at::Tensor sum =
      AtTokens({rows}, kept.routing, kept.passage, &context(), add, parted ? at::Tensor() : kept.middle);
  return parted ? parts.Sum(sum, kept.middle) : sum;
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
  kept->routing = {};
  kept->passage = {};
  kept->shared_gate_up = at::Tensor();
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
  kept.documents = input.documents;
  kept.targets = input.targets;
  FillMiddle(&kept);
  DropAttention(keep, &kept);
  FillGateUp(&kept);
  if (HasExperts() && context().IndexIn(Group::kTensor) == 0)
    context().AddRouting(RoutingSums(kept.routing, config_.experts), kept.routing.counts);
  const at::Tensor out = FfnOutput(kept);
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
  Routing& routing = kept->routing;
  Passage& passage = kept->passage;
  tensors.insert(tensors.end(), {&routing.logits, &routing.experts, &routing.counts, &routing.loads,
                                 &routing.counted, &passage.weights, &kept->shared_gate_up});
  for (RowPlaces* places : {&routing.rows, &passage.here, &passage.sent})
    tensors.insert(tensors.end(), {&places->order, &places->of_choice, &places->ends});
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
                  InFp8(product.matrices) ? Operands::kFp8 : Operands::kAsTheyAre, product.x_largest);
}

void NativeBlock::Add(MatrixGrads product, BackwardCall* call) const {
  if (call->when == WeightGrads::kNow) return Compute(product, call->grads);
  call->later.push_back(std::move(product));
}

void NativeBlock::AddBeside(MatrixGrads product, BackwardCall* call) const {
  const bool nothing_travels = TokenParts(&context()).ranks() == 1;
  if (nothing_travels || call->when == WeightGrads::kLater) return Add(std::move(product), call);
  call->beside.push_back(std::move(product));
}

at::Tensor NativeBlock::Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                                 WeightGrads when) {
  const at::NoGradGuard no_grad;
  CheckGrads(grads);
  Kept kept = kept_.Take(slot);
  if (!kept.middle.defined()) FillMiddle(&kept);
  if (!kept.gate_up.defined()) FillGateUp(&kept);
  BackwardCall call{grads, when, {}, {}};
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

at::Tensor NativeBlock::SharedOutput(const at::Tensor& gate_up) const {
  const Weights weights = WeightsOf({p_.shared_w2});
  if (!weights.in_fp8()) return LinearForward(SwigluForward(gate_up), weights);
  at::Tensor out = at::empty({gate_up.size(0), weights.all_outputs()}, gate_up.options());
  LinearForwardInto(Fp8SwigluForward(gate_up), weights, {}, out);
  return out;
}

at::Tensor NativeBlock::SharedBackward(const at::Tensor& grad_sum, const BackwardCall& call,
                                       Kept* kept) const {
  // Its gradient, until SwigluBackward.
  at::Tensor product = LinearBackward(grad_sum, Turned(WeightsOf({p_.shared_w2})));
  at::Tensor gate_up = std::move(kept->shared_gate_up);
  SwigluBackward(product, gate_up);
  Compute({grad_sum, std::move(product), {p_.shared_w2}, {}}, call.grads);
  return gate_up;
}

// Everything of experts is by row up to their inputs' gradients, which are added up by token. The norm's
// output, which router and experts read, is made again as in NormedBackward.
at::Tensor NativeBlock::ExpertsFfnBackward(const at::Tensor& grad, BackwardCall* call, Kept* kept) const {
  const TokenParts parts(&context());
  const Routing routing = std::move(kept->routing);
  const Passage passage = std::move(kept->passage);
  const at::Tensor& ends = EndsHere(routing, passage);
  const bool accumulate = call->grads.accumulate;
  const auto for_experts = [&](const at::Tensor& of, const std::function<void()>& work) {
    return ForExperts(of, config_.experts.per_token, &context(), work);
  };
  at::Tensor gate_up = std::move(kept->gate_up);  // Their gradients after SwigluBackward.
  at::Tensor grad_logits, shared_gate_up;
  {
    const at::Tensor grad_sum = parts.Gather(grad);
    const at::Tensor all = for_experts(grad_sum, [&] {
      if (HasShared()) shared_gate_up = SharedBackward(grad_sum, *call, kept);
    });
    const ExpertRows grad_rows = RowsFor(all, routing, passage, {p_.w2});
    const auto [product, grad_weights] =
        WeighedSwigluBackward(ExpertsInputGrads(grad_rows, ends, {p_.w2})[0], gate_up, passage.weights, ends);
    ExpertsMatrixGrads(grad_rows, product, ends, {p_.w2}, *call);
    grad_logits = RouterBackward(routing, config_.experts,
                                 AtChoices(grad_weights, routing, passage, &context()), context());
  }
  const at::Tensor sum =
      AtTokens(ExpertsInputGrads(gate_up, ends, GateUp()), routing, passage, &context(),
               [&](at::Tensor* of) {
                 AddRouterInputGrad(grad_logits, param(p_.router), of);
                 if (HasShared()) of->add_(LinearBackward(shared_gate_up, Turned(WeightsOf(SharedGateUp()))));
               },
               /*addend=*/{});
  at::Tensor normed = parts.Sum(sum);  // Its gradient.
  at::Tensor grad_middle =
      RmsNormBackward(normed, kept->middle, kept->ffn_rstd, param(p_.ffn_norm), /*residual=*/grad, accumulate,
                      call->Into(p_.ffn_norm), /*y_into=*/normed);
  normed = parts.Gather(normed);
  const at::Tensor all = for_experts(normed, [&] {
    if (call->Into(p_.router).defined())
      GradInto(RouterMatrixGrad(grad_logits, normed), accumulate, call->Into(p_.router));
    if (HasShared()) Compute({shared_gate_up, normed, SharedGateUp(), {}}, call->grads);
  });
  ExpertsMatrixGrads(gate_up, RowsFor(all, routing, passage, GateUp()), ends, GateUp(), *call);
  kept->middle = kept->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::Fp8FfnBackward(const at::Tensor& grad, BackwardCall* call, Kept* kept) const {
  Fp8SwigluGrads of = Fp8SwigluBackward(ProductBackward(grad, p_.w2), kept->gate_up, ScalesOf(GateUp()));
  kept->gate_up = at::Tensor();
  MatrixGrads product = {grad, {}, {p_.w2}, {}};
  product.x_columns = std::move(of.product_columns);
  Add(std::move(product), call);
  at::Tensor grad_middle =
      NormedBackward(grad, {{}, std::move(of.gate_up), std::move(of.gate_up_columns)}, kept->middle,
                     kept->ffn_rstd, {p_.ffn_norm, GateUp(), /*biases=*/{}}, call);
  kept->middle = kept->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::FfnBackward(const at::Tensor& grad, BackwardCall* call, Kept* kept) const {
  if (HasExperts()) return ExpertsFfnBackward(grad, call, kept);
  if (ReadsRounded({p_.w2}) && ReadsRounded(GateUp())) return Fp8FfnBackward(grad, call, kept);
  at::Tensor grad_sum = TokenParts(&context()).RoomWith(grad);
  at::Tensor product = ProductBackward(grad_sum, p_.w2);  // Its gradient, until SwigluBackward.
  at::Tensor gate_up = std::move(kept->gate_up);          // Their gradients after it.
  SwigluBackward(product, gate_up);
  AddBeside({std::move(grad_sum), std::move(product), {p_.w2}, {}}, call);
  at::Tensor grad_middle = NormedBackward(grad, {std::move(gate_up)}, kept->middle, kept->ffn_rstd,
                                          {p_.ffn_norm, GateUp(), /*biases=*/{}}, call);
  kept->middle = kept->ffn_rstd = at::Tensor();
  return grad_middle;
}

at::Tensor NativeBlock::AttentionHalfBackward(const at::Tensor& grad, BackwardCall* call, Kept* kept) const {
  at::Tensor grad_sum = TokenParts(&context()).RoomWith(grad);
  at::Tensor grad_out = ProductBackward(grad_sum, p_.wo).view(kept->attended.out.sizes());
  AddBeside({std::move(grad_sum), FlatTokens(kept->attended.out), {p_.wo}, {}}, call);
  FillQk(kept);
  AttentionInput of = AttendBackward(std::move(grad_out), *kept);
  kept->attended = {};
  at::Tensor grad_qkv =
      HasLatents() ? LatentBackward(std::move(of), call, kept) : QkvBackward(std::move(of), *call, kept);
  return NormedBackward(grad, {std::move(grad_qkv)}, kept->x.flatten(0, 1), kept->attention_rstd,
                        {p_.attention_norm, Qkv(), QkvBiases()}, call);
}

// The norm's output, which the matrices' gradients need, is made again where its gradient was.
at::Tensor NativeBlock::NormedBackward(const at::Tensor& grad, OutputGrads grad_outputs, const at::Tensor& x,
                                       const at::Tensor& rstd, const NormedParams& params,
                                       BackwardCall* call) const {
  const TokenParts parts(&context());
  Weights weights = Turned(WeightsOf(params.matrices));
  const bool rounded = grad_outputs.rows.defined();
  const int64_t tokens = (rounded ? grad_outputs.rows.values : grad_outputs.plain).size(0);
  at::Tensor all = at::empty({tokens, x.size(1)}, x.options());
  const at::Tensor grad_normed = parts.Sum(all, [&](int64_t begin, int64_t rows) {
    const at::Tensor into = all.narrow(0, begin, rows);
    if (rounded) return LinearBackwardInto(grad_outputs.rows.Part(begin, rows), weights, into);
    LinearBackwardInto(grad_outputs.plain.narrow(0, begin, rows), weights, into);
  });
  grad_outputs.rows = weights.turned = {};
  at::Tensor largest;
  at::Tensor grad_x = RmsNormBackward(grad_normed, x, rstd, param(params.norm), /*residual=*/grad,
                                      call->grads.accumulate, call->Into(params.norm), parts.Own(all),
                                      ReadsRounded(params.matrices) ? &largest : nullptr);
  parts.GatherWhile(all, [&] {
    for (MatrixGrads& product : call->beside) Compute(product, call->grads);
    call->beside.clear();
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

// Of each product the gradients of all before it are gone when the next one's are made.
at::Tensor NativeBlock::LatentBackward(AttentionInput grad, BackwardCall* call, Kept* kept) const {
  const bool accumulate = call->grads.accumulate;
  const auto add = [&](LatentProduct of, int matrix) {
    Add({std::move(of.grad_out), std::move(of.x), {matrix}, {}}, call);
  };
  add(latent_.KeysBackward(grad.k, grad.v, LatentRowsOf(*kept), LatentHeadsOf(*kept), LatentParamsOf(),
                           accumulate, call->Into(p_.kv_a_norm)),
      p_.wkv_b);
  if (SharesSamples()) latent_.SamplesBackward(LatentRowsOf(*kept), &context());
  kept->samples = at::Tensor();
  grad.k = grad.v = kept->k = kept->k_rstd = at::Tensor();
  LatentProduct queries = latent_.QueriesBackward(grad.q, LatentRowsOf(*kept), LatentHeadsOf(*kept),
                                                  LatentParamsOf(), accumulate, call->Into(p_.q_a_norm));
  if (queries.x.defined()) add(std::move(queries), p_.wq_b);
  kept->q = kept->q_rstd = at::Tensor();
  return std::move(kept->qkv);
}

// The rows of qkv have been read for the last time (but by the norms of q and k) and take the gradients.
at::Tensor NativeBlock::QkvBackward(AttentionInput grad, const BackwardCall& call, Kept* kept) const {
  const AttentionInput rows = Heads(kept->qkv, kept->micro_batch);
  rows.v.copy_(grad.v);
  if (!config_.qk_norm) {
    RotateBackward(rotary_, kept->positions, {grad.q, grad.k}, {rows.q, rows.k});
    return std::move(kept->qkv);
  }
  NormAndRotateBackward(rotary_, kept->positions, {grad.q, grad.k}, {{}, kept->q_rstd, kept->k_rstd},
                        HeadNormsOf(), {call.Into(p_.q_norm), call.Into(p_.k_norm), call.grads.accumulate},
                        {rows.q, rows.k});
  kept->q = kept->k = kept->q_rstd = kept->k_rstd = at::Tensor();
  return std::move(kept->qkv);
}

}  // namespace fsdpd
