#include "fsdp/model/native/native_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "base/check.h"
#include "fsdp/kernels/experts/grouped_product.h"
#include "fsdp/kernels/experts/weighed_swiglu.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/native_rows.h"
#include "fsdp/plan/model/model_facts.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

static_assert(kExpertRowStep % kernels::kGroupedStep == 0);

kernels::Stream StreamOf(const at::Tensor& x) { return kernels::CurrentStream(x.get_device()); }

// Columns of the m-th matrix in rows of several.
at::Tensor OutputsOf(const at::Tensor& rows, size_t m, int64_t outputs) {
  return rows.narrow(1, static_cast<int64_t>(m) * outputs, outputs);
}

// x: [rows x inputs], y: [rows x outputs]; computes one of x, y and the matrix from the other two.
void GroupedProduct(kernels::GroupedForm form, const at::Tensor& x, const at::Tensor& y,
                    const at::Tensor& matrix, const at::Tensor& ends) {
  FSDPD_CHECK(x.stride(1) == 1 && y.stride(1) == 1 && matrix.is_contiguous() && ends.is_contiguous());
  FSDPD_CHECK(x.scalar_type() == y.scalar_type() && y.scalar_type() == matrix.scalar_type());
  FSDPD_CHECK(x.size(0) % kExpertRowStep == 0 && x.size(0) == y.size(0) && matrix.size(0) == ends.size(0));
  FSDPD_CHECK(matrix.size(1) == y.size(1) && matrix.size(2) == x.size(1));
  kernels::GroupedProductArgs args = {};
  args.x = x.data_ptr();
  args.y = y.data_ptr();
  args.matrix = matrix.data_ptr();
  args.ends = ends.const_data_ptr<int32_t>();
  args.x_stride = x.stride(0);
  args.y_stride = y.stride(0);
  args.rows = x.size(0);
  args.inputs = x.size(1);
  args.outputs = y.size(1);
  args.experts = static_cast<int>(ends.size(0));
  args.type = DTypeOf(x.scalar_type());
  kernels::GroupedProduct(form, args, StreamOf(x));
}

void GradOnCuda(const at::Tensor& grad_out, const at::Tensor& rows, const at::Tensor& ends, bool accumulate,
                const at::Tensor& into) {
  if (into.scalar_type() == rows.scalar_type() && !accumulate)
    return GroupedProduct(kernels::GroupedForm::kWeights, rows, grad_out, into, ends);
  const at::Tensor grad = at::empty(into.sizes(), rows.options());
  GroupedProduct(kernels::GroupedForm::kWeights, rows, grad_out, grad, ends);
  GradInto(grad, accumulate, into);
}

void GradOnCpu(const at::Tensor& grad_out, const at::Tensor& rows, const at::Tensor& ends, bool accumulate,
               const at::Tensor& into) {
  ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t count) {
    if (count > 0) {
      WeightGradInto(grad_out.narrow(0, begin, count), rows.narrow(0, begin, count), accumulate,
                     into[expert]);
    } else if (!accumulate) {
      into[expert].zero_();
    }
  });
}

kernels::WeighedSwigluArgs SwigluArgsOf(const at::Tensor& gate_up, const at::Tensor& weights,
                                        const at::Tensor& product, const at::Tensor& ends) {
  FSDPD_CHECK(gate_up.is_contiguous() && weights.is_contiguous() && product.is_contiguous());
  kernels::WeighedSwigluArgs args = {};
  args.gate_up = gate_up.data_ptr();
  args.weights = weights.const_data_ptr<float>();
  args.product = product.data_ptr();
  args.used = UsedRows(ends);
  args.rows = product.size(0);
  args.width = product.size(1);
  args.type = DTypeOf(gate_up.scalar_type());
  return args;
}

}  // namespace

at::Tensor ExpertsForward(const at::Tensor& rows, const at::Tensor& ends,
                          const std::vector<at::Tensor>& matrices) {
  const int64_t outputs = matrices[0].size(1);
  at::Tensor out = at::empty({rows.size(0), outputs * static_cast<int64_t>(matrices.size())}, rows.options());
  for (size_t m = 0; m < matrices.size(); ++m) {
    const at::Tensor of_matrix = OutputsOf(out, m, outputs);
    if (rows.is_cuda()) {
      GroupedProduct(kernels::GroupedForm::kForward, rows, of_matrix, matrices[m], ends);
      continue;
    }
    ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t count) {
      if (count == 0) return;
      at::Tensor own = of_matrix.narrow(0, begin, count);
      at::mm_out(own, rows.narrow(0, begin, count), matrices[m][expert].t());
    });
  }
  return out;
}

std::vector<at::Tensor> ExpertsBackward(const at::Tensor& grad_out, const at::Tensor& ends,
                                        const std::vector<at::Tensor>& matrices) {
  const int64_t outputs = matrices[0].size(1);
  FSDPD_CHECK(grad_out.size(1) == outputs * static_cast<int64_t>(matrices.size()));
  std::vector<at::Tensor> parts;
  for (size_t m = 0; m < matrices.size(); ++m) {
    const at::Tensor of_matrix = OutputsOf(grad_out, m, outputs);
    if (m == 0 || grad_out.is_cuda())
      parts.push_back(at::empty({grad_out.size(0), matrices[0].size(2)}, grad_out.options()));
    if (grad_out.is_cuda()) {
      GroupedProduct(kernels::GroupedForm::kBackward, parts[m], of_matrix, matrices[m], ends);
      continue;
    }
    ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t count) {
      if (count == 0) return;
      const at::Tensor of_rows = of_matrix.narrow(0, begin, count);
      at::Tensor own = parts[0].narrow(0, begin, count);
      m == 0 ? at::mm_out(own, of_rows, matrices[m][expert]) : own.addmm_(of_rows, matrices[m][expert]);
    });
  }
  return parts;
}

void ExpertsGradsInto(const at::Tensor& grad_out, const at::Tensor& rows, const at::Tensor& ends,
                      int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into) {
  for (size_t m = 0; m < into.size(); ++m) {
    if (!into[m].defined()) continue;
    const at::Tensor of_matrix = OutputsOf(grad_out, m, outputs);
    rows.is_cuda() ? GradOnCuda(of_matrix, rows, ends, accumulate, into[m])
                   : GradOnCpu(of_matrix, rows, ends, accumulate, into[m]);
  }
}

at::Tensor WeighedSwigluForward(const at::Tensor& gate_up, const at::Tensor& weights,
                                const at::Tensor& ends) {
  if (!gate_up.is_cuda()) return SwigluForward(gate_up).mul_(weights.to(gate_up.scalar_type()));
  at::Tensor product = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  kernels::WeighedSwigluForward(SwigluArgsOf(gate_up, weights, product, ends), StreamOf(gate_up));
  return product;
}

WeighedSwigluGrads WeighedSwigluBackward(at::Tensor grad_product, const at::Tensor& gate_up,
                                         const at::Tensor& weights, const at::Tensor& ends) {
  if (gate_up.is_cuda()) {
    at::Tensor grad_weights = at::empty({gate_up.size(0), 1}, weights.options());
    kernels::WeighedSwigluArgs args = SwigluArgsOf(gate_up, weights, grad_product, ends);
    args.grad_weights = grad_weights.mutable_data_ptr<float>();
    kernels::WeighedSwigluBackward(args, StreamOf(gate_up));
    return {std::move(grad_product), std::move(grad_weights)};
  }
  const at::Tensor rounded = weights.to(gate_up.scalar_type());
  at::Tensor product = grad_product.mul(rounded);  // Its gradient without the weights, until SwigluBackward.
  SwigluBackward(product, gate_up);
  at::Tensor grad_weights = grad_product.mul_(product).sum(-1, /*keepdim=*/true, at::kFloat);
  return {product.mul_(rounded), std::move(grad_weights)};
}

}  // namespace fsdpd
