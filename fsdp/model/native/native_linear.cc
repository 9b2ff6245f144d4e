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

// Adds the adapters' products to the outputs in `into`.
void AddAdapters(const at::Tensor& x, const Weights& weights, const at::Tensor& into) {
  int64_t begin = 0;
  for (size_t i = 0; i < weights.adapters.size(); ++i) {
    const LoraAdapter& adapter = weights.adapters[i];
    if (adapter.defined()) {
      into.narrow(1, begin, weights.outputs[i])
          .addmm_(at::mm(x, adapter.a.t()), adapter.b.t(), /*beta=*/1, /*alpha=*/adapter.scale);
    }
    begin += weights.outputs[i];
  }
}

// The base of LinearForwardInto and LinearBackwardInto: the products without adapters.
void PlainForwardInto(const at::Tensor& x, const Matrices& matrices, const Matrices& biases,
                      at::Tensor into) {
  const bool plain = !AnyDefined(biases);
  if (const at::Tensor one = AsOne(matrices); plain && one.defined()) {
    if (!ProductInto(/*residual=*/{}, x, one, into)) at::mm_out(into, x, one.t());
    return;
  }
  int64_t begin = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    at::Tensor own = into.narrow(1, begin, matrices[i].size(0));
    begin += matrices[i].size(0);
    if (!plain && biases[i].defined()) {
      at::addmm_out(own, biases[i], x, matrices[i].t());
    } else {
      at::mm_out(own, x, matrices[i].t());
    }
  }
}

void PlainBackwardInto(const at::Tensor& grad_out, const Matrices& matrices, at::Tensor into) {
  if (const at::Tensor one = AsOne(matrices); one.defined()) {
    at::mm_out(into, grad_out, one);
    return;
  }
  int64_t begin = 0;
  for (const at::Tensor& matrix : matrices) {
    const at::Tensor own = grad_out.narrow(1, begin, matrix.size(0));
    if (begin == 0) {
      at::mm_out(into, own, matrix);
    } else {
      into.addmm_(own, matrix);
    }
    begin += matrix.size(0);
  }
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

Weights::Weights(Matrices matrices, std::vector<LoraAdapter> with)
    : plain(std::move(matrices)), adapters(std::move(with)) {
  FSDPD_CHECK(adapters.empty() || adapters.size() == plain.size());
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

Weights Transposed(Weights weights) {
  if (weights.in_fp8()) weights.transposed = Fp8Transposed(weights.fp8);
  return weights;
}

void LinearForwardInto(const at::Tensor& x, const Weights& weights, const Matrices& biases, at::Tensor into) {
  if (weights.in_fp8()) return LinearForwardInto(Fp8Rows(x), weights, biases, into);
  PlainForwardInto(x, weights.plain, biases, into);
  AddAdapters(x, weights, into);
}

void LinearForwardInto(const Fp8& x, const Weights& weights, const Matrices& biases, at::Tensor into) {
  Fp8ProductInto(x, weights.fp8, /*addend=*/{}, into);
  int64_t begin = 0;
  for (size_t i = 0; i < biases.size(); ++i) {
    if (biases[i].defined()) into.narrow(1, begin, weights.outputs[i]).add_(biases[i]);
    begin += weights.outputs[i];
  }
}

at::Tensor LinearForward(const at::Tensor& x, const Weights& weights, const Matrices& biases) {
  at::Tensor y = at::empty({x.size(0), weights.all_outputs()}, x.options());
  LinearForwardInto(x, weights, biases, y);
  return y;
}

at::Tensor AddLinear(const at::Tensor& residual, const at::Tensor& x, const Weights& weights) {
  if (weights.in_fp8()) return AddLinear(residual, Fp8Rows(x), weights);
  const at::Tensor& matrix = weights.plain[0];
  at::Tensor sum = at::empty_like(residual);
  if (!ProductInto(residual, x, matrix, sum)) at::addmm_out(sum, residual, x, matrix.t());
  AddAdapters(x, weights, sum);
  return sum;
}

at::Tensor AddLinear(const at::Tensor& residual, const Fp8& x, const Weights& matrix) {
  at::Tensor sum = at::empty_like(residual);
  Fp8ProductInto(x, matrix.fp8, residual, sum);
  return sum;
}

void LinearBackwardInto(const at::Tensor& grad_out, const Weights& weights, at::Tensor into) {
  FSDPD_CHECK(grad_out.size(1) == weights.all_outputs());
  if (weights.in_fp8()) return LinearBackwardInto(Fp8Rows(grad_out, weights.fp8.scales), weights, into);
  PlainBackwardInto(grad_out, weights.plain, into);
  int64_t begin = 0;
  for (size_t i = 0; i < weights.adapters.size(); ++i) {
    const LoraAdapter& adapter = weights.adapters[i];
    if (adapter.defined()) {
      const at::Tensor own = grad_out.narrow(1, begin, weights.outputs[i]);
      into.addmm_(at::mm(own, adapter.b), adapter.a, /*beta=*/1, /*alpha=*/adapter.scale);
    }
    begin += weights.outputs[i];
  }
}

void LinearBackwardInto(const Fp8& grad_out, const Weights& weights, at::Tensor into) {
  FSDPD_CHECK(weights.transposed.defined());
  Fp8ProductInto(grad_out, weights.transposed, /*addend=*/{}, into);
}

at::Tensor LinearBackward(const at::Tensor& grad_out, const Weights& weights) {
  at::Tensor grad = at::empty({grad_out.size(0), weights.inputs()}, grad_out.options());
  LinearBackwardInto(grad_out, weights, grad);
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

void AdapterGradsInto(const at::Tensor& grad_out, const at::Tensor& x, const LoraAdapter& adapter,
                      bool accumulate, const at::Tensor& a_into, const at::Tensor& b_into) {
  if (b_into.defined())
    WeightGradInto(grad_out, at::mm(x, adapter.a.t()).mul_(adapter.scale), accumulate, b_into);
  if (a_into.defined())
    WeightGradInto(at::mm(grad_out, adapter.b).mul_(adapter.scale), x, accumulate, a_into);
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

}  // namespace fsdpd
