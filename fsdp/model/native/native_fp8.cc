#include "fsdp/model/native/native_fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>

#include <stdexcept>

#include "base/check.h"
#include "fsdp/kernels/fp8.h"
#include "fsdp/kernels/scaled_product.h"
#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

constexpr double kLargest = 448;
constexpr double kLeast = 0x1p-100;

at::Tensor LargestOfRows(const at::Tensor& x) {
  return at::amax(at::abs(x), {1}, /*keepdim=*/true).clamp_min(kLeast);
}

// Quantizes rows of x (fp32) on the CPU; the result has `width` columns, of which x fills the first.
Fp8 RowsOnHost(const at::Tensor& x, int64_t width) {
  const at::Tensor largest = LargestOfRows(x);
  const at::Tensor factor = at::empty_like(largest).fill_(kLargest).div_(largest);
  at::Tensor values = at::zeros({x.size(0), width}, x.options().dtype(at::kFloat8_e4m3fn));
  values.narrow(1, 0, x.size(1)).copy_(x * factor);
  return {values, (largest / kLargest).flatten()};
}

// The smallest power-of-two scale with which no element exceeds 448; non-finite values are unchanged.
at::Tensor PowersOnHost(const at::Tensor& largest) {
  const auto [mantissa, exponent] = at::frexp(largest / kLargest);  // Exact except for its last bits.
  const at::Tensor low = at::ldexp(at::ones_like(largest), exponent - 1);
  const at::Tensor scale = at::where(low * kLargest >= largest, low, low * 2);
  return at::where(largest.isfinite(), scale, largest);
}

bool OnDevice(const Fp8& x, const Fp8& weight, const at::Tensor& addend, const at::Tensor& into) {
  kernels::ScaledProductArgs args = {};
  args.x = x.values.const_data_ptr();
  args.x_scales = x.scales.const_data_ptr<float>();
  args.weight = weight.values.const_data_ptr();
  args.weight_scales = weight.scales.const_data_ptr<float>();
  args.addend = addend.defined() ? addend.const_data_ptr() : nullptr;
  args.result = into.data_ptr();
  args.rows = x.values.size(0);
  args.outputs = weight.values.size(0);
  args.inputs = x.values.size(1);
  args.stride = into.stride(0);
  args.type = DTypeOf(into.scalar_type());
  return kernels::ScaledProduct(args, kernels::CurrentStream(into.get_device()));
}

}  // namespace

Fp8 Fp8::Part(int64_t begin, int64_t rows) const {
  return {values.narrow(0, begin, rows), scales.narrow(0, begin, rows)};
}

Fp8 EmptyFp8(int64_t rows, int64_t width, const at::Tensor& on_device_of) {
  return {at::empty({rows, width}, on_device_of.options().dtype(at::kFloat8_e4m3fn)),
          at::empty({rows}, on_device_of.options().dtype(at::kFloat))};
}

int64_t PaddedRows(int64_t rows) { return (rows + kFp8Step - 1) / kFp8Step * kFp8Step; }

Fp8 Fp8Rows(const at::Tensor& x, const at::Tensor& by_column, const at::Tensor& ends) {
  FSDPD_CHECK(x.scalar_type() == at::kBFloat16 && x.stride(1) == 1 && x.size(1) % kFp8Step == 0);
  FSDPD_CHECK(!by_column.defined() || (by_column.numel() == x.size(1) && by_column.is_contiguous()));
  const Fp8Class kind = by_column.defined() ? Fp8Class::kGradients : Fp8Class::kInputs;
  if (!x.is_cuda()) {
    const at::Tensor plain = x.to(at::kFloat), wide = by_column.defined() ? plain * by_column : plain;
    Fp8 rows = RowsOnHost(wide, x.size(1));
    Fp8Watch::Add(kind, wide, rows.values, rows.scales);
    return rows;
  }
  Fp8 rows = EmptyFp8(x.size(0), x.size(1), x);
  kernels::Fp8RowsArgs args = {
      x.const_data_ptr(),           x.size(0), x.size(1), x.stride(0), rows.values.data_ptr(),
      rows.scales.data_ptr<float>()};
  if (by_column.defined()) args.by_column = by_column.const_data_ptr<float>();
  if (ends.defined()) {
    FSDPD_CHECK(!by_column.defined());
    args.ends = ends.const_data_ptr<int32_t>();
    args.experts = static_cast<int>(ends.size(0));
  }
  args.seen = Fp8Watch::PlaceOf(kind);
  kernels::Fp8Rows(args, kernels::CurrentStream(x.get_device()));
  return rows;
}

void Fp8WeightsInto(const at::Tensor& from, const Fp8& into) {
  FSDPD_CHECK(from.is_contiguous() && into.values.is_contiguous() && from.sizes() == into.values.sizes());
  FSDPD_CHECK(from.scalar_type() == at::kBFloat16 || from.scalar_type() == at::kFloat);
  if (!from.is_cuda()) {
    const at::Tensor x = from.to(at::kBFloat16).to(at::kFloat), scales = PowersOnHost(LargestOfRows(x));
    into.values.copy_(x * scales.reciprocal());
    into.scales.copy_(scales.flatten());
    Fp8Watch::Add(Fp8Class::kWeights, x, into.values, into.scales);
    return;
  }
  kernels::Fp8Weights(
      {from.const_data_ptr(), DTypeOf(from.scalar_type()), from.size(0), from.size(1), into.values.data_ptr(),
       into.scales.data_ptr<float>(), Fp8Watch::PlaceOf(Fp8Class::kWeights)},
      kernels::CurrentStream(from.get_device()));
}

Fp8 Fp8Weights(const at::Tensor& from) {
  const Fp8 into = EmptyFp8(from.size(0), from.size(1), from);
  Fp8WeightsInto(from, into);
  return into;
}

Fp8 Fp8Transposed(const Fp8& weights) {
  const int64_t rows = weights.values.size(0), width = weights.values.size(1);
  FSDPD_CHECK(weights.values.is_contiguous() && rows % kFp8Step == 0 && width % kFp8Step == 0);
  if (!weights.values.is_cuda())
    return {weights.values.t().contiguous(), at::ones({width}, weights.scales.options())};
  Fp8 transposed = EmptyFp8(width, rows, weights.values);
  kernels::Fp8Transpose({weights.values.const_data_ptr(), rows, width, transposed.values.data_ptr(),
                         transposed.scales.data_ptr<float>(), rows},
                        kernels::CurrentStream(weights.values.get_device()));
  return transposed;
}

Fp8 Fp8Columns(const at::Tensor& x, const at::Tensor& largest) {
  FSDPD_CHECK(x.scalar_type() == at::kBFloat16 && x.stride(1) == 1 && x.size(1) % kFp8Step == 0);
  const int64_t padded = PaddedRows(x.size(0));
  if (!x.is_cuda()) return RowsOnHost(x.t().to(at::kFloat), padded);
  Fp8 columns = EmptyFp8(x.size(1), padded, x);
  const at::Tensor capacity =
      largest.defined() ? largest : at::empty({x.size(1)}, x.options().dtype(at::kInt));
  kernels::Fp8ColumnsArgs args = {x.const_data_ptr(),
                                  x.size(0),
                                  x.size(1),
                                  x.stride(0),
                                  columns.values.data_ptr(),
                                  padded,
                                  columns.scales.data_ptr<float>(),
                                  reinterpret_cast<uint32_t*>(capacity.data_ptr<int32_t>())};
  args.found = largest.defined();
  kernels::Fp8Columns(args, kernels::CurrentStream(x.get_device()));
  return columns;
}

void Fp8ProductInto(const Fp8& x, const Fp8& weight, const at::Tensor& addend, at::Tensor into) {
  FSDPD_CHECK(into.stride(1) == 1 && x.values.size(1) == weight.values.size(1));
  FSDPD_CHECK(!addend.defined() ||
              (addend.scalar_type() == into.scalar_type() && addend.strides() == into.strides()));
  if (into.is_cuda()) {
    if (OnDevice(x, weight, addend, into)) return;
    const at::Tensor product = at::empty(into.sizes(), into.options().dtype(at::kBFloat16));
    if (!OnDevice(x, weight, {}, product)) {
      throw std::runtime_error(absl::StrCat("cuBLASLt has no FP8 product of ", x.values.size(0), " x ",
                                            x.values.size(1), " by ", weight.values.size(0)));
    }
    addend.defined() ? into.copy_(addend + product) : into.copy_(product);
    return;
  }
  at::Tensor product = at::mm(x.values.to(at::kFloat), weight.values.to(at::kFloat).t());
  product.mul_(x.scales.unsqueeze(1)).mul_(weight.scales);
  if (addend.defined()) product.add_(addend);
  into.copy_(product);
}

}  // namespace fsdpd
