#include "fsdp/model/native/native_linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "fsdp/kernels/adapted_swiglu.h"
#include "fsdp/kernels/add_product.h"
#include "fsdp/model/native/native_fp8.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

bool Follows(const at::Tensor& before, const at::Tensor& next) {
  return next.is_alias_of(before) && next.scalar_type() == before.scalar_type() &&
         next.storage_offset() == before.storage_offset() + before.numel() && next.size(1) == before.size(1);
}

bool AnyDefined(const Matrices& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined(); });
}

// Concatenates as bytes, since LibTorch does not concatenate FP8.
at::Tensor Joined(const Matrices& matrices) {
  Matrices bytes;
  for (const at::Tensor& matrix : matrices) bytes.push_back(matrix.view(at::kByte));
  return at::cat(bytes).view(at::kFloat8_e4m3fn);
}

// residual + x matrix^T (residual may be undefined). Returns false, without doing anything, if LibTorch must
// compute it.
bool ProductInto(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& matrix, at::Tensor into) {
  if (!x.is_cuda() || !x.is_contiguous()) return false;
  const auto fits = [&](const at::Tensor& of, int64_t rows, int64_t width) {
    return of.is_contiguous() && of.scalar_type() == x.scalar_type() && of.size(0) == rows &&
           of.size(1) == width;
  };
  FSDPD_CHECK(fits(matrix, matrix.size(0), x.size(1)) && fits(into, x.size(0), matrix.size(0)));
  FSDPD_CHECK(!residual.defined() || fits(residual, x.size(0), matrix.size(0)));
  const kernels::AddProductArgs args = {residual.defined() ? residual.const_data_ptr() : nullptr,
                                        x.const_data_ptr(),
                                        matrix.const_data_ptr(),
                                        into.data_ptr(),
                                        x.size(0),
                                        matrix.size(0),
                                        matrix.size(1),
                                        DTypeOf(x.scalar_type())};
  return kernels::AddProduct(args, kernels::CurrentStream(x.get_device()));
}

Matrices Defined(const Matrices& tensors) {
  Matrices found;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(found),
               [](const at::Tensor& of) { return of.defined(); });
  return found;
}

// Calls run(matrix, its columns of outputs, its columns of `low`) for each matrix with an adapter.
template <typename Run>
void ForEachAdapter(const Weights& weights, const at::Tensor& outputs, const at::Tensor& low, Run run) {
  int64_t begin = 0, low_begin = 0;
  for (size_t i = 0; i < weights.outputs.size(); ++i) {
    if (weights.adapters.a[i].defined()) {
      const int64_t rank = weights.adapters.a[i].size(0);
      run(i, outputs.narrow(1, begin, weights.outputs[i]), low.narrow(1, low_begin, rank));
      low_begin += rank;
    }
    begin += weights.outputs[i];
  }
}

at::Tensor AllA(const LoraAdapters& adapters) {
  const Matrices a = Defined(adapters.a);
  const at::Tensor one = AsOne(a);
  return one.defined() ? one : at::cat(a);
}

// into = factor a b
void ProductTimes(double factor, const at::Tensor& a, const at::Tensor& b, at::Tensor into) {
  at::addmm_out(into, into, a, b, /*beta=*/0, /*alpha=*/factor);
}

void LowInto(const at::Tensor& x, const Weights& weights, const at::Tensor& into) {
  ProductTimes(weights.adapters.scale, x, AllA(weights.adapters).t(), into);
}

void NarrowBackward(const at::Tensor& grad_out, const Weights& weights, const AdapterBackward& of) {
  ForEachAdapter(weights, grad_out, of.grad_low,
                 [&](size_t i, const at::Tensor& grad, const at::Tensor& own) {
                   ProductTimes(weights.adapters.scale, grad, weights.adapters.b[i], own);
                 });
  ForEachAdapter(weights, grad_out, of.low, [&](size_t i, const at::Tensor& grad, const at::Tensor& own) {
    WeightGradInto(grad, own, of.accumulate, of.b_into[i]);
  });
}

// Everything but the products of the matrices: the adapters' products and the biases.
void AdaptersForwardInto(const at::Tensor& low, const Weights& weights, const Matrices& biases,
                         const at::Tensor& into) {
  const auto has_bias = [&](size_t i) { return !biases.empty() && biases[i].defined(); };
  int64_t begin = 0;
  for (size_t i = 0; i < weights.outputs.size(); ++i) {
    at::Tensor own = into.narrow(1, begin, weights.outputs[i]);
    begin += weights.outputs[i];
    if (has_bias(i)) {
      own.copy_(biases[i]);
    } else if (!weights.adapters.a[i].defined()) {
      own.zero_();
    }
  }
  ForEachAdapter(weights, into, low, [&](size_t i, at::Tensor outputs, const at::Tensor& own) {
    at::addmm_out(outputs, outputs, own, weights.adapters.b[i].t(), /*beta=*/has_bias(i) ? 1 : 0);
  });
}

// The products without adapters. With `accumulate`, adds them to `into`.
void PlainForwardInto(const at::Tensor& x, const Matrices& matrices, const Matrices& biases, bool accumulate,
                      at::Tensor into) {
  const bool plain = !AnyDefined(biases);
  if (const at::Tensor one = AsOne(matrices); plain && one.defined()) {
    if (ProductInto(accumulate ? into : at::Tensor(), x, one, into)) return;
    accumulate ? into.addmm_(x, one.t()) : at::mm_out(into, x, one.t());
    return;
  }
  int64_t begin = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    at::Tensor own = into.narrow(1, begin, matrices[i].size(0));
    begin += matrices[i].size(0);
    if (accumulate) {
      own.addmm_(x, matrices[i].t());
    } else if (!plain && biases[i].defined()) {
      at::addmm_out(own, biases[i], x, matrices[i].t());
    } else {
      at::mm_out(own, x, matrices[i].t());
    }
  }
}

void PlainBackwardInto(const at::Tensor& grad_out, const Matrices& matrices, bool accumulate,
                       at::Tensor into) {
  const auto product = [&](const at::Tensor& grad, const at::Tensor& matrix) {
    accumulate ? into.addmm_(grad, matrix) : at::mm_out(into, grad, matrix);
    accumulate = true;
  };
  if (const at::Tensor one = AsOne(matrices); one.defined()) return product(grad_out, one);
  int64_t begin = 0;
  for (const at::Tensor& matrix : matrices) {
    product(grad_out.narrow(1, begin, matrix.size(0)), matrix);
    begin += matrix.size(0);
  }
}

// `matrix`: [width x rank], possibly a transposed view; undefined: no addend. Its columns of `low` start at
// `begin`.
kernels::LowRankAddend AddendOf(const at::Tensor& low, int64_t begin, const at::Tensor& matrix) {
  if (!matrix.defined()) return {};
  const at::Tensor own = low.narrow(1, begin, matrix.size(1));
  FSDPD_CHECK(own.stride(1) == 1);
  return {own.const_data_ptr(), own.stride(0),    matrix.const_data_ptr(),
          matrix.stride(0),     matrix.stride(1), matrix.size(1)};
}

kernels::AdaptedSwigluArgs SwigluArgsOf(const at::Tensor& product, const at::Tensor& gate_up,
                                        const WithLow& of) {
  FSDPD_CHECK(product.is_contiguous() && gate_up.is_contiguous());
  kernels::AdaptedSwigluArgs args = {gate_up.data_ptr(), product.data_ptr(), product.size(0),
                                     product.size(1)};
  if (!of.weights.adapted()) return args;
  const Matrices& b = of.weights.adapters.b;
  args.gate = AddendOf(of.low, 0, b[0]);
  args.up = AddendOf(of.low, args.gate.rank, b[1]);
  return args;
}

}  // namespace

at::Tensor AsOne(const Matrices& matrices) {
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (!matrices[i].defined() || !matrices[i].is_contiguous()) return {};
    if (i > 0 && !Follows(matrices[i - 1], matrices[i])) return {};
  }
  const int64_t inputs = matrices[0].size(1);
  return matrices[0].as_strided({OutputsOf(matrices), inputs}, {inputs, 1});
}

int64_t OutputsOf(const Matrices& matrices) {
  int64_t outputs = 0;
  for (const at::Tensor& matrix : matrices) outputs += matrix.size(0);
  return outputs;
}

int64_t LoraAdapters::ranks() const {
  int64_t sum = 0;
  for (const at::Tensor& of : a) sum += of.defined() ? of.size(0) : 0;
  return sum;
}

Weights::Weights(Matrices matrices, LoraAdapters with)
    : plain(std::move(matrices)), adapters(std::move(with)) {
  FSDPD_CHECK(!adapted() || (adapters.a.size() == plain.size() && adapters.b.size() == plain.size()));
  for (const at::Tensor& matrix : plain) outputs.push_back(matrix.size(0));
}

at::Tensor JoinedScales(const std::vector<at::Tensor>& scales) {
  Matrices columns;
  for (const at::Tensor& of : scales) columns.push_back(of.unsqueeze(1));
  const at::Tensor one = AsOne(columns);
  return (one.defined() ? one : at::cat(columns)).squeeze(1);
}

Weights::Weights(const std::vector<Fp8>& matrices) {
  std::vector<at::Tensor> values, scales;
  for (const Fp8& matrix : matrices) {
    outputs.push_back(matrix.values.size(0));
    values.push_back(matrix.values);
    scales.push_back(matrix.scales);
  }
  const at::Tensor one = AsOne(values);
  fp8 = {one.defined() ? one : Joined(values), JoinedScales(scales)};
}

int64_t Weights::all_outputs() const { return std::accumulate(outputs.begin(), outputs.end(), int64_t{0}); }

at::Tensor Weights::EmptyLow(const at::Tensor& rows) const {
  if (!adapted()) return {};
  return at::empty({rows.size(0), adapters.ranks()}, rows.options());
}

AdapterBackward AdapterBackward::Part(int64_t begin, int64_t rows) const {
  if (!low.defined()) return {};
  return {low.narrow(0, begin, rows), grad_low.narrow(0, begin, rows), b_into, accumulate};
}

Weights Transposed(Weights weights) {
  if (weights.in_fp8()) weights.transposed = Fp8Transposed(weights.fp8);
  return weights;
}

void LinearForwardInto(const at::Tensor& x, const Weights& weights, const Matrices& biases, at::Tensor into,
                       const at::Tensor& low) {
  if (weights.in_fp8()) return LinearForwardInto(Fp8Rows(x), weights, biases, into);
  if (weights.adapted()) LowInto(x, weights, low);
  if (!weights.adds_wide()) return PlainForwardInto(x, weights.plain, biases, /*accumulate=*/false, into);
  AdaptersForwardInto(low, weights, biases, into);
  PlainForwardInto(x, weights.plain, /*biases=*/{}, /*accumulate=*/true, into);
}

void LinearForwardInto(const Fp8& x, const Weights& weights, const Matrices& biases, at::Tensor into) {
  Fp8ProductInto(x, weights.fp8, /*addend=*/{}, into);
  int64_t begin = 0;
  for (size_t i = 0; i < biases.size(); ++i) {
    if (biases[i].defined()) into.narrow(1, begin, weights.outputs[i]).add_(biases[i]);
    begin += weights.outputs[i];
  }
}

at::Tensor LinearForward(const at::Tensor& x, const Weights& weights, const Matrices& biases,
                         at::Tensor* low) {
  at::Tensor y = at::empty({x.size(0), weights.all_outputs()}, x.options());
  if (low != nullptr) *low = weights.EmptyLow(x);
  LinearForwardInto(x, weights, biases, y, low != nullptr ? *low : at::Tensor());
  return y;
}

at::Tensor AddLinear(const at::Tensor& residual, const at::Tensor& x, const Weights& weights,
                     const at::Tensor& low) {
  if (weights.in_fp8()) return AddLinear(residual, Fp8Rows(x), weights);
  at::Tensor sum = at::empty_like(residual);
  const auto add = [&](const at::Tensor& addend, const at::Tensor& of, const at::Tensor& matrix) {
    if (!ProductInto(addend, of, matrix, sum)) at::addmm_out(sum, addend, of, matrix.t());
  };
  if (weights.adapted()) {
    LowInto(x, weights, low);
    add(residual, low, weights.adapters.b[0]);
  }
  add(weights.adapted() ? sum : residual, x, weights.plain[0]);
  return sum;
}

at::Tensor AddLinear(const at::Tensor& residual, const Fp8& x, const Weights& matrix) {
  at::Tensor sum = at::empty_like(residual);
  Fp8ProductInto(x, matrix.fp8, residual, sum);
  return sum;
}

void LinearBackwardInto(const at::Tensor& grad_out, const Weights& weights, at::Tensor into,
                        const AdapterBackward& adapters) {
  FSDPD_CHECK(grad_out.size(1) == weights.all_outputs());
  if (weights.in_fp8()) return LinearBackwardInto(Fp8Rows(grad_out, weights.fp8.scales), weights, into);
  if (weights.adapted()) NarrowBackward(grad_out, weights, adapters);
  if (weights.adds_wide()) at::mm_out(into, adapters.grad_low, AllA(weights.adapters));
  PlainBackwardInto(grad_out, weights.plain, /*accumulate=*/weights.adds_wide(), into);
}

void LinearBackwardInto(const Fp8& grad_out, const Weights& weights, at::Tensor into) {
  FSDPD_CHECK(weights.transposed.defined());
  Fp8ProductInto(grad_out, weights.transposed, /*addend=*/{}, into);
}

at::Tensor LinearBackward(const at::Tensor& grad_out, const Weights& weights,
                          const AdapterBackward& adapters) {
  at::Tensor grad = at::empty({grad_out.size(0), weights.inputs()}, grad_out.options());
  LinearBackwardInto(grad_out, weights, grad, adapters);
  return grad;
}

void LinearGradsInto(const at::Tensor& grad_out, const at::Tensor& x, const std::vector<int64_t>& outputs,
                     bool accumulate, const Matrices& into, const Matrices& biases_into, Operands operands,
                     const at::Tensor& x_largest) {
  FSDPD_CHECK(into.size() == outputs.size());
  const bool fp8 = operands == Operands::kFp8;
  if (fp8 && AnyDefined(into))
    LinearGradsInto(Fp8Columns(grad_out), Fp8Columns(x, x_largest), outputs, accumulate, into);
  const at::Tensor one = AsOne(into);
  if (one.defined() && !fp8) WeightGradInto(grad_out, x, accumulate, one);
  int64_t begin = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor own = grad_out.narrow(1, begin, outputs[i]);
    begin += outputs[i];
    if (!one.defined() && !fp8) WeightGradInto(own, x, accumulate, into[i]);
    if (!biases_into.empty()) BiasGradInto(own, accumulate, biases_into[i]);
  }
}

void AdapterInputGradsInto(const at::Tensor& grad_low, const at::Tensor& x, bool accumulate,
                           const Matrices& into) {
  const Matrices own = Defined(into);
  if (const at::Tensor one = AsOne(own); one.defined()) return WeightGradInto(grad_low, x, accumulate, one);
  int64_t begin = 0;
  for (const at::Tensor& a_into : own) {
    WeightGradInto(grad_low.narrow(1, begin, a_into.size(0)), x, accumulate, a_into);
    begin += a_into.size(0);
  }
}

void LinearGradsInto(const Fp8& grad_out, const Fp8& x, const std::vector<int64_t>& outputs, bool accumulate,
                     const Matrices& into) {
  const auto product = [&](const Fp8& rows, const at::Tensor& to) {
    Fp8ProductInto(rows, x, accumulate ? to : at::Tensor(), to);
  };
  if (const at::Tensor one = AsOne(into); one.defined()) return product(grad_out, one);
  int64_t begin = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (into[i].defined()) product(grad_out.Part(begin, outputs[i]), into[i]);
    begin += outputs[i];
  }
}

bool TakesAdaptedSwiglu(const Weights& gate_up, const Weights& down) {
  if (gate_up.in_fp8() || down.in_fp8() || !(gate_up.adapted() || down.adapted())) return false;
  int64_t rank = 0;
  for (const Weights* weights : {&gate_up, &down}) {
    for (const at::Tensor& a : Defined(weights->adapters.a)) rank = std::max(rank, a.size(0));
  }
  const at::Tensor& matrix = gate_up.plain[0];
  return matrix.is_cuda() && kernels::TakesAdaptedSwiglu(matrix.size(0), rank, DTypeOf(matrix.scalar_type()));
}

at::Tensor AdaptedSwigluForward(const at::Tensor& gate_up, const WithLow& of) {
  at::Tensor product = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  kernels::AdaptedSwigluForward(SwigluArgsOf(product, gate_up, of),
                                kernels::CurrentStream(gate_up.get_device()));
  return product;
}

void AdaptedSwigluBackward(const at::Tensor& grad_product, const at::Tensor& gate_up, const WithLow& of,
                           const WithLow& down) {
  kernels::AdaptedSwigluArgs args = SwigluArgsOf(grad_product, gate_up, of);
  if (down.weights.adapted()) args.grad_product = AddendOf(down.low, 0, down.weights.adapters.a[0].t());
  kernels::AdaptedSwigluBackward(args, kernels::CurrentStream(gate_up.get_device()));
}

}  // namespace fsdpd
