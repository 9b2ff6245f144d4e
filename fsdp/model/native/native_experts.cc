#include "fsdp/model/native/native_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/mm.h>

#include "base/check.h"
#include "fsdp/model/native/native_ops.h"

namespace fsdpd {
namespace {

// Calls `run` with each expert's number, first row and number of rows.
template <typename Run>
void ForEachExpert(const RowCounts& of_expert, Run run) {
  int64_t begin = 0;
  for (size_t e = 0; e < of_expert.size(); ++e) {
    run(static_cast<int64_t>(e), begin, of_expert[e]);
    begin += of_expert[e];
  }
}

}  // namespace

at::Tensor RowsOfTokens(const at::Tensor& tokens, const Routing& routing) {
  return tokens.index_select(0, routing.order.floor_divide(routing.experts.size(1)));
}

at::Tensor SumOfRows(const at::Tensor& rows, const Routing& routing) {
  const at::Tensor row_of_choice =
      at::empty_like(routing.order)
          .scatter_(0, routing.order, at::arange(routing.order.size(0), routing.order.options()));
  return rows.index_select(0, row_of_choice)
      .unflatten(0, routing.experts.sizes())
      .sum(1, /*keepdim=*/false, at::kFloat);
}

at::Tensor ExpertsForward(const at::Tensor& rows, const RowCounts& of_expert,
                          const std::vector<at::Tensor>& matrices) {
  const int64_t outputs = matrices[0].size(1);
  at::Tensor out = at::empty({rows.size(0), outputs * static_cast<int64_t>(matrices.size())}, rows.options());
  ForEachExpert(of_expert, [&](int64_t expert, int64_t begin, int64_t count) {
    if (count == 0) return;
    const at::Tensor own = rows.narrow(0, begin, count);
    for (size_t m = 0; m < matrices.size(); ++m) {
      at::Tensor of_matrix =
          out.narrow(0, begin, count).narrow(1, static_cast<int64_t>(m) * outputs, outputs);
      at::mm_out(of_matrix, own, matrices[m][expert].t());
    }
  });
  return out;
}

at::Tensor ExpertsBackward(const at::Tensor& grad_out, const RowCounts& of_expert,
                           const std::vector<at::Tensor>& matrices) {
  const int64_t outputs = matrices[0].size(1);
  FSDPD_CHECK(grad_out.size(1) == outputs * static_cast<int64_t>(matrices.size()));
  at::Tensor grad = at::empty({grad_out.size(0), matrices[0].size(2)}, grad_out.options());
  ForEachExpert(of_expert, [&](int64_t expert, int64_t begin, int64_t count) {
    if (count == 0) return;
    at::Tensor own = grad.narrow(0, begin, count);
    for (size_t m = 0; m < matrices.size(); ++m) {
      const at::Tensor of_matrix =
          grad_out.narrow(0, begin, count).narrow(1, static_cast<int64_t>(m) * outputs, outputs);
      m == 0 ? at::mm_out(own, of_matrix, matrices[m][expert]) : own.addmm_(of_matrix, matrices[m][expert]);
    }
  });
  return grad;
}

void ExpertsGradsInto(const at::Tensor& grad_out, const at::Tensor& rows, const RowCounts& of_expert,
                      int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into) {
  ForEachExpert(of_expert, [&](int64_t expert, int64_t begin, int64_t count) {
    for (size_t m = 0; m < into.size(); ++m) {
      if (!into[m].defined()) continue;
      if (count == 0) {
        if (!accumulate) into[m][expert].zero_();
        continue;
      }
      const at::Tensor of_matrix =
          grad_out.narrow(0, begin, count).narrow(1, static_cast<int64_t>(m) * outputs, outputs);
      WeightGradInto(of_matrix, rows.narrow(0, begin, count), accumulate, into[m][expert]);
    }
  });
}

}  // namespace fsdpd
