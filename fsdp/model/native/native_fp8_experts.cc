#include "fsdp/model/native/native_fp8_experts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "fsdp/kernels/experts/scaled_grouped_product.h"
#include "fsdp/kernels/fp8.h"
#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/model/native/native_linear.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/native_rows.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

kernels::Stream StreamOf(const at::Tensor& x) { return kernels::CurrentStream(x.get_device()); }

int64_t OutputsOf(const std::vector<Fp8>& matrices) {
  return matrices[0].values.size(1) * static_cast<int64_t>(matrices.size());
}

at::Tensor Copied(const ExpertRows& rows) {
  return rows.places.defined() ? GatherRows(rows.from, rows.places, rows.divisor) : rows.from;
}

Weights WeightsOf(int64_t expert, const std::vector<Fp8>& matrices) {
  std::vector<Fp8> own;
  for (const Fp8& matrix : matrices) own.push_back({matrix.values[expert], matrix.scales[expert]});
  return own;
}

void ProductInto(const Fp8& rows, const at::Tensor& ends, const Fp8& matrix, const at::Tensor& into) {
  FSDPD_CHECK(rows.values.is_contiguous() && rows.scales.is_contiguous() && into.stride(1) == 1);
  FSDPD_CHECK(matrix.values.is_contiguous() && matrix.scales.is_contiguous());
  FSDPD_CHECK(matrix.values.size(2) == rows.values.size(1) && matrix.values.size(1) == into.size(1));
  kernels::ScaledRowsArgs args = {};
  args.x = rows.values.data_ptr();
  args.x_scales = rows.scales.data_ptr<float>();
  args.matrix = matrix.values.data_ptr();
  args.scales = matrix.scales.data_ptr<float>();
  args.ends = ends.const_data_ptr<int32_t>();
  args.y = into.data_ptr();
  args.y_stride = into.stride(0);
  args.rows = rows.values.size(0);
  args.inputs = rows.values.size(1);
  args.outputs = into.size(1);
  args.experts = static_cast<int>(ends.size(0));
  kernels::ScaledGroupedRows(args, StreamOf(into));
}

template <typename Args>
void SetPlaces(const ExpertRows& rows, Args* args) {
  if (!rows.places.defined()) return;
  FSDPD_CHECK(rows.places.is_contiguous());
  args->places = rows.places.const_data_ptr<int32_t>();
  args->divisor = static_cast<int>(rows.divisor);
}

// Quantizes by row, with the scales of the matrices folded in.
Fp8 ScaledRows(const ExpertRows& grad_out, const at::Tensor& ends, const std::vector<Fp8>& matrices) {
  std::vector<at::Tensor> of;
  for (const Fp8& matrix : matrices) of.push_back(matrix.scales);
  const at::Tensor scales = of.size() == 1 ? of[0] : at::cat(of, 1);
  FSDPD_CHECK(scales.is_contiguous() && scales.size(1) == grad_out.width());
  Fp8 rows = EmptyFp8(grad_out.rows(), grad_out.width(), grad_out.from);
  kernels::Fp8RowsArgs args = {};
  args.from = grad_out.from.const_data_ptr();
  args.rows = grad_out.rows();
  args.width = grad_out.width();
  args.stride = grad_out.from.stride(0);
  args.to = rows.values.data_ptr();
  args.scales = rows.scales.data_ptr<float>();
  args.by_column = scales.const_data_ptr<float>();
  args.ends = ends.const_data_ptr<int32_t>();
  args.experts = static_cast<int>(ends.size(0));
  SetPlaces(grad_out, &args);
  args.seen = Fp8Watch::PlaceOf(Fp8Class::kGradients);
  kernels::Fp8Rows(args, StreamOf(grad_out.from));
  return rows;
}

// Transposes the matrices and concatenates their outputs per expert, so that one product sums over all of
// them.
Fp8 AllTurned(const std::vector<Fp8>& matrices) {
  const at::Tensor& first = matrices[0].values;
  const int64_t experts = first.size(0), outputs = first.size(1), inputs = first.size(2),
                all = OutputsOf(matrices);
  const Fp8 transposed = {at::empty({experts, inputs, all}, first.options()),
                          at::empty({experts, inputs}, matrices[0].scales.options())};
  for (size_t m = 0; m < matrices.size(); ++m) {
    FSDPD_CHECK(matrices[m].values.is_contiguous() && matrices[m].values.sizes() == first.sizes());
    const at::Tensor to = transposed.values.narrow(2, static_cast<int64_t>(m) * outputs, outputs);
    kernels::Fp8Transpose({matrices[m].values.const_data_ptr(), outputs, inputs, to.data_ptr(),
                           transposed.scales.data_ptr<float>(), all, experts},
                          StreamOf(first));
  }
  return transposed;
}

// Quantizes transposed, with scales [experts x width].
Fp8 ColumnsOnCuda(const ExpertRows& of, const at::Tensor& ends) {
  const at::Tensor& x = of.from;
  const int64_t experts = ends.size(0), width = of.width(), rows = of.rows();
  FSDPD_CHECK(x.stride(1) == 1 && rows % kFp8Step == 0);
  Fp8 columns = {at::empty({width, rows}, x.options().dtype(at::kFloat8_e4m3fn)),
                 at::empty({experts, width}, x.options().dtype(at::kFloat))};
  const at::Tensor largest = at::empty({experts, width}, x.options().dtype(at::kInt));
  kernels::Fp8ColumnsArgs args = {};
  args.from = x.const_data_ptr();
  args.rows = args.padded = rows;
  args.width = width;
  args.stride = x.stride(0);
  args.to = columns.values.data_ptr();
  args.scales = columns.scales.data_ptr<float>();
  args.largest = reinterpret_cast<uint32_t*>(largest.data_ptr<int32_t>());
  args.ends = ends.const_data_ptr<int32_t>();
  args.experts = static_cast<int>(experts);
  SetPlaces(of, &args);
  kernels::Fp8Columns(args, StreamOf(x));
  return columns;
}

void GradOnCuda(const Fp8& grad_columns, const Fp8& columns, const at::Tensor& ends, const at::Tensor& into) {
  FSDPD_CHECK(into.is_contiguous() && into.scalar_type() == at::kBFloat16);
  kernels::ScaledGradsArgs args = {};
  args.y = grad_columns.values.data_ptr();
  args.y_scales = grad_columns.scales.data_ptr<float>();
  args.x = columns.values.data_ptr();
  args.x_scales = columns.scales.data_ptr<float>();
  args.ends = ends.const_data_ptr<int32_t>();
  args.matrix = into.data_ptr();
  args.rows = columns.values.size(1);
  args.inputs = into.size(2);
  args.outputs = into.size(1);
  args.experts = static_cast<int>(ends.size(0));
  kernels::ScaledGroupedGrads(args, StreamOf(into));
}

void GradsOnCuda(const ExpertRows& grad_out, const ExpertRows& rows, const at::Tensor& ends, int64_t outputs,
                 bool accumulate, const std::vector<at::Tensor>& into) {
  const Fp8 columns = ColumnsOnCuda(rows, ends);
  for (size_t m = 0; m < into.size(); ++m) {
    if (!into[m].defined()) continue;
    ExpertRows own = grad_out;
    own.from = own.from.narrow(1, static_cast<int64_t>(m) * outputs, outputs);
    const Fp8 grad_columns = ColumnsOnCuda(own, ends);
    if (into[m].scalar_type() == at::kBFloat16 && !accumulate) {
      GradOnCuda(grad_columns, columns, ends, into[m]);
      continue;
    }
    const at::Tensor grad = at::empty(into[m].sizes(), rows.from.options());
    GradOnCuda(grad_columns, columns, ends, grad);
    GradInto(grad, accumulate, into[m]);
  }
}

}  // namespace

at::Tensor Fp8ExpertsForward(const Fp8& rows, const at::Tensor& ends, const std::vector<Fp8>& matrices) {
  const int64_t outputs = matrices[0].values.size(1);
  const at::Tensor out =
      at::empty({rows.values.size(0), OutputsOf(matrices)}, rows.values.options().dtype(at::kBFloat16));
  if (out.is_cuda()) {
    for (size_t m = 0; m < matrices.size(); ++m)
      ProductInto(rows, ends, matrices[m], out.narrow(1, static_cast<int64_t>(m) * outputs, outputs));
    return out;
  }
  ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t count) {
    if (count > 0)
      LinearForwardInto(rows.Part(begin, count), WeightsOf(expert, matrices), {},
                        out.narrow(0, begin, count));
  });
  return out;
}

at::Tensor Fp8ExpertsBackward(const ExpertRows& grad_out, const at::Tensor& ends,
                              const std::vector<Fp8>& matrices) {
  const at::Tensor grad = at::empty({grad_out.rows(), matrices[0].values.size(2)}, grad_out.from.options());
  if (grad.is_cuda()) {
    ProductInto(ScaledRows(grad_out, ends, matrices), ends, AllTurned(matrices), grad);
    return grad;
  }
  const at::Tensor rows = Copied(grad_out);
  ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t count) {
    if (count == 0) return;
    LinearBackwardInto(rows.narrow(0, begin, count), Transposed(WeightsOf(expert, matrices)),
                       grad.narrow(0, begin, count));
  });
  return grad;
}

void Fp8ExpertsGradsInto(const ExpertRows& grad_out, const ExpertRows& rows, const at::Tensor& ends,
                         int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into) {
  if (std::none_of(into.begin(), into.end(), [](const at::Tensor& of) { return of.defined(); })) return;
  if (rows.from.is_cuda()) return GradsOnCuda(grad_out, rows, ends, outputs, accumulate, into);
  const at::Tensor of_grad = Copied(grad_out), of_rows = Copied(rows);
  ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t count) {
    std::vector<at::Tensor> own;
    for (const at::Tensor& of : into) own.push_back(of.defined() ? of[expert] : at::Tensor());
    if (count > 0) {
      LinearGradsInto(of_grad.narrow(0, begin, count), of_rows.narrow(0, begin, count),
                      std::vector<int64_t>(into.size(), outputs), accumulate, own, /*biases_into=*/{},
                      Operands::kFp8);
    } else if (!accumulate) {
      for (at::Tensor& of : own) {
        if (of.defined()) of.zero_();
      }
    }
  });
}

}  // namespace fsdpd
