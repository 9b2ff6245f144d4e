#include "fsdp/model/native/native_products.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/model/native/native_fp8_ops.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/token_parts.h"
#include "fsdp/plan/model/lora_facts.h"

namespace fsdpd {
namespace {

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

at::Tensor PartOf(const at::Tensor& low, int64_t begin, int64_t rows) {
  return low.defined() ? low.narrow(0, begin, rows) : low;
}

}  // namespace

NativeProducts::NativeProducts(UnitFacts facts, at::ScalarType compute, const LlamaConfig& config)
    : NativeUnit(facts, compute, /*borrowed=*/0),
      config_(WithOwnHeads(config, facts)),
      of_keys_({IndexOf("attention.wk"), IndexOf("attention.bk"), IndexOf(LoraBName("attention.wk")),
                IndexOf("attention.wv"), IndexOf("attention.bv"), IndexOf(LoraBName("attention.wv"))}) {
  if (facts.lora_scale == 0) return;
  for (const ParamFacts& param : facts.params)
    adapters_.push_back({IndexOf(LoraAName(param.name)), IndexOf(LoraBName(param.name))});
}

bool NativeProducts::HasRemoteRows(int index) const {
  const bool of_keys = index >= 0 && std::find(of_keys_.begin(), of_keys_.end(), index) != of_keys_.end();
  return of_keys && param(index).size(0) > config_.kv_heads * config_.head_size;
}

// Adjacent ranks have the query heads that read the same key head.
at::Tensor NativeProducts::LocalRows(int index, const at::Tensor& of) const {
  if (!HasRemoteRows(index) || !of.defined()) return of;
  const int64_t rows = config_.head_size, heads = of.size(0) / rows;
  const int64_t head = context().IndexIn(Group::kTensor) * heads / context().SizeOf(Group::kTensor);
  return of.narrow(0, head * rows, rows);
}

std::vector<at::Tensor> NativeProducts::ParamsOf(const std::vector<int>& indices) const {
  std::vector<at::Tensor> params;
  for (const int index : indices) params.push_back(LocalRows(index, param(index)));
  return params;
}

Weights NativeProducts::WeightsOf(const std::vector<int>& matrices) const {
  if (InFp8(matrices)) return Fp8Of(matrices);
  LoraAdapters adapters;
  adapters.scale = facts().lora_scale;
  for (const int matrix : matrices) {
    const AdapterParams of = AdapterOf(matrix);
    adapters.a.push_back(param(of.a));
    adapters.b.push_back(LocalRows(of.b, param(of.b)));
  }
  return {ParamsOf(matrices), std::move(adapters)};
}

std::vector<Fp8> NativeProducts::Fp8Of(const std::vector<int>& matrices) const {
  std::vector<Fp8> found;
  for (const int matrix : matrices)
    found.push_back({LocalRows(matrix, param(matrix)), LocalRows(matrix, scales(matrix))});
  return found;
}

at::Tensor NativeProducts::ScalesOf(const std::vector<int>& matrices) const {
  std::vector<at::Tensor> of;
  for (const int matrix : matrices) of.push_back(LocalRows(matrix, scales(matrix)));
  return JoinedScales(of);
}

bool NativeProducts::ReadsRounded(const std::vector<int>& matrices) const {
  return InFp8(matrices) && context().SizeOf(Group::kTensor) == 1;
}

at::Tensor NativeProducts::AddProduct(const at::Tensor& residual, const at::Tensor& x, int matrix,
                                      at::Tensor* low) const {
  const TokenParts parts(&context());
  const Weights weights = WeightsOf({matrix});
  *low = weights.EmptyLow(x);
  if (parts.ranks() == 1) return AddLinear(residual, x, weights, *low);
  const at::Tensor products = at::empty({x.size(0), residual.size(1)}, x.options());
  const auto make = [&](int64_t begin, int64_t rows) {
    LinearForwardInto(x.narrow(0, begin, rows), weights, {}, products.narrow(0, begin, rows),
                      PartOf(*low, begin, rows));
  };
  return parts.Sum(products, make, residual);
}

at::Tensor NativeProducts::NormedProduct(const at::Tensor& x, const NormedParams& params,
                                         const NormedSaved& saved) const {
  Weights weights = WeightsOf(params.matrices);
  weights.adapters.narrow_only = params.narrow_only;
  const Matrices biases = ParamsOf(params.biases);
  const auto capacity = [&](int64_t rows) { return at::empty({rows, weights.all_outputs()}, x.options()); };
  if (ReadsRounded(params.matrices)) {
    Fp8Normed normed = Fp8RmsNormForward(x, param(params.norm), config_.norm_epsilon);
    *saved.rstd = std::move(normed.rstd);
    at::Tensor outputs = capacity(x.size(0));
    LinearForwardInto(normed.y, weights, biases, outputs);
    return outputs;
  }
  const TokenParts parts(&context());
  const at::Tensor all = parts.EmptyParts(x);
  *saved.rstd = RmsNormForward(x, param(params.norm), config_.norm_epsilon, parts.Own(all)).rstd;
  *saved.low = weights.EmptyLow(all);
  at::Tensor outputs = capacity(all.size(0));
  parts.Gather(all, [&](int64_t begin, int64_t rows) {
    LinearForwardInto(all.narrow(0, begin, rows), weights, biases, outputs.narrow(0, begin, rows),
                      PartOf(*saved.low, begin, rows));
  });
  return outputs;
}

AdapterBackward NativeProducts::AdapterBackwardOf(const std::vector<int>& matrices, at::Tensor low,
                                                  const ParamGrads& grads) const {
  if (!low.defined()) return {};
  Matrices b_into;
  for (const int matrix : matrices) b_into.push_back(OwnGrad(AdapterOf(matrix).b, grads));
  at::Tensor grad_low = at::empty_like(low);
  return {std::move(low), std::move(grad_low), std::move(b_into), grads.accumulate};
}

at::Tensor NativeProducts::ProductBackward(const at::Tensor& grad_sum, int matrix, AdapterBackward* adapters,
                                           bool narrow_only) const {
  Weights weights = Transposed(WeightsOf({matrix}));
  weights.adapters.narrow_only = narrow_only;
  at::Tensor grad = at::empty({grad_sum.size(0), weights.inputs()}, grad_sum.options());
  TokenParts(&context()).Gather(grad_sum, [&](int64_t begin, int64_t rows) {
    LinearBackwardInto(grad_sum.narrow(0, begin, rows), weights, grad.narrow(0, begin, rows),
                       adapters->Part(begin, rows));
    adapters->accumulate = true;
  });
  return grad;
}

// The norm's output, which the gradients of the matrices need, is recomputed in the memory of its gradient.
at::Tensor NativeProducts::NormedBackward(const at::Tensor& grad, OutputGrads grad_outputs,
                                          const at::Tensor& x, const NormedSaved& saved,
                                          const NormedParams& params, BackwardCall* call) const {
  const TokenParts parts(&context());
  Weights weights = Transposed(WeightsOf(params.matrices));
  const bool rounded = grad_outputs.rows.defined();
  const int64_t tokens = (rounded ? grad_outputs.rows.values : grad_outputs.plain).size(0);
  at::Tensor all = at::empty({tokens, x.size(1)}, x.options());
  AdapterBackward adapters = AdapterBackwardOf(params.matrices, std::move(*saved.low), call->grads);
  const at::Tensor grad_normed = parts.Sum(all, [&](int64_t begin, int64_t rows) {
    const at::Tensor into = all.narrow(0, begin, rows);
    if (rounded) return LinearBackwardInto(grad_outputs.rows.Part(begin, rows), weights, into);
    LinearBackwardInto(grad_outputs.plain.narrow(0, begin, rows), weights, into, adapters.Part(begin, rows));
    adapters.accumulate = true;
  });
  grad_outputs.rows = weights.transposed = {};
  at::Tensor largest;
  at::Tensor grad_x = RmsNormBackward(grad_normed, x, *saved.rstd, param(params.norm), /*residual=*/grad,
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
       std::move(adapters.grad_low),
       std::move(grad_outputs.columns),
       {},
       std::move(largest)},
      call);
  return grad_x;
}

// Rows are copies of tokens, so quantizing before the copy halves its memory traffic.
at::Tensor NativeProducts::ExpertsOfTokens(const at::Tensor& tokens, const Routing& routing,
                                           const TokenDispatch& dispatch,
                                           const std::vector<int>& matrices) const {
  const at::Tensor& ends = LocalEnds(routing, dispatch);
  const auto move = [&](const at::Tensor& of) { return ToRows(of, routing, dispatch, &context()); };
  if (!InFp8(matrices)) return ExpertsForward(move(tokens), ends, ParamsOf(matrices));
  return Fp8ExpertsForward(MovedRows(Fp8Rows(tokens), move), ends, Fp8Of(matrices));
}

at::Tensor NativeProducts::ExpertsOfRows(const at::Tensor& rows, const at::Tensor& ends, int matrix) const {
  if (!InFp8({matrix})) return ExpertsForward(rows, ends, {param(matrix)});
  return Fp8ExpertsForward(Fp8Rows(rows, /*by_column=*/{}, ends), ends, Fp8Of({matrix}));
}

// Rows that are quantized where they are read need no copy, unless they are sent to other ranks.
ExpertRows NativeProducts::RowsFor(const at::Tensor& tokens, const Routing& routing,
                                   const TokenDispatch& dispatch, const std::vector<int>& matrices) const {
  const at::Tensor order = LocalOrder(routing, dispatch);
  if (InFp8(matrices) && order.defined()) return {tokens, order, config_.experts.per_token};
  return ToRows(tokens, routing, dispatch, &context());
}

std::vector<at::Tensor> NativeProducts::ExpertsInputGrads(const ExpertRows& grad_out, const at::Tensor& ends,
                                                          const std::vector<int>& matrices) const {
  if (!InFp8(matrices)) return ExpertsBackward(grad_out.from, ends, ParamsOf(matrices));
  return {Fp8ExpertsBackward(grad_out, ends, Fp8Of(matrices))};
}

void NativeProducts::ExpertsMatrixGrads(const ExpertRows& grad_out, const ExpertRows& rows,
                                        const at::Tensor& ends, const std::vector<int>& matrices,
                                        const BackwardCall& call) const {
  std::vector<at::Tensor> into;
  for (const int matrix : matrices) into.push_back(call.Into(matrix));
  const int64_t outputs = param(matrices.front()).size(1);
  const bool accumulate = call.grads.accumulate;
  if (InFp8(matrices)) return Fp8ExpertsGradsInto(grad_out, rows, ends, outputs, accumulate, into);
  ExpertsGradsInto(grad_out.from, rows.from, ends, outputs, accumulate, into);
}

at::Tensor NativeProducts::OwnGrad(int index, const ParamGrads& grads) const {
  if (index < 0) return {};
  const at::Tensor& all = grads.into[index];
  if (all.defined() && !grads.accumulate && HasRemoteRows(index)) all.zero_();
  return LocalRows(index, all);
}

void NativeProducts::Compute(const MatrixGrads& product, const ParamGrads& grads) const {
  std::vector<int64_t> outputs;
  std::vector<at::Tensor> into, biases_into;
  for (const int matrix : product.matrices) {
    outputs.push_back(LocalRows(matrix, param(matrix)).size(0));
    into.push_back(OwnGrad(matrix, grads));
  }
  for (const int bias : product.biases) biases_into.push_back(OwnGrad(bias, grads));
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
  if (!product.grad_low.defined()) return;
  Matrices a_into;
  for (const int matrix : product.matrices) a_into.push_back(OwnGrad(AdapterOf(matrix).a, grads));
  AdapterInputGradsInto(product.grad_low, product.x, grads.accumulate, a_into);
}

void NativeProducts::Add(MatrixGrads product, BackwardCall* call) const {
  if (call->when == WeightGrads::kNow) return Compute(product, call->grads);
  call->later.push_back(std::move(product));
}

void NativeProducts::AddOverlapped(MatrixGrads product, BackwardCall* call) const {
  const bool nothing_travels = TokenParts(&context()).ranks() == 1;
  if (nothing_travels || call->when == WeightGrads::kLater) return Add(std::move(product), call);
  call->overlapped.push_back(std::move(product));
}

}  // namespace fsdpd
