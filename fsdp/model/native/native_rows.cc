#include "fsdp/model/native/native_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "fsdp/kernels/expert_rows.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

kernels::Stream StreamOf(const at::Tensor& x) { return kernels::CurrentStream(x.get_device()); }

// An expert without a choice has `step` rows, any other less than that beyond its own.
int64_t MostRows(int64_t choices, int64_t experts, int64_t step) {
  return step == 1 ? choices : RoundUp(choices + experts * step, step);
}

void PlaceRowsOnCpu(const at::Tensor& chosen, int64_t step, const RowPlaces& places) {
  const int64_t* expert = chosen.const_data_ptr<int64_t>();
  const int64_t choices = chosen.numel();
  std::vector<int32_t> next(places.ends.size(0) + 1);  // Counts, then where each expert's next row goes.
  for (int64_t i = 0; i < choices; ++i) ++next[expert[i] + 1];
  int32_t* ends = places.ends.mutable_data_ptr<int32_t>();
  for (size_t e = 0; e + 1 < next.size(); ++e) {
    const int64_t rows = step == 1 ? next[e + 1] : std::max(step, RoundUp(next[e + 1], step));
    next[e + 1] = ends[e] = static_cast<int32_t>(next[e] + rows);
  }
  int32_t *order = places.order.mutable_data_ptr<int32_t>(),
          *of_choice = places.of_choice.mutable_data_ptr<int32_t>();
  std::fill_n(order, places.order.numel(), -1);
  for (int64_t i = 0; i < choices; ++i) {
    of_choice[i] = next[expert[i]]++;
    order[of_choice[i]] = static_cast<int32_t>(i);
  }
}

void PlaceRowsOnCuda(const at::Tensor& chosen, int64_t step, const RowPlaces& places) {
  FSDPD_CHECK(places.ends.size(0) <= kernels::kMostExperts);
  const int64_t experts = places.ends.size(0);
  const at::Tensor counts =
      at::empty({kernels::PlaceRowsBlocks(chosen.numel()), experts}, places.ends.options());
  kernels::PlaceRowsArgs args = {};
  args.chosen = chosen.const_data_ptr<int64_t>();
  args.order = places.order.mutable_data_ptr<int32_t>();
  args.of_choice = places.of_choice.mutable_data_ptr<int32_t>();
  args.ends = places.ends.mutable_data_ptr<int32_t>();
  args.counts = counts.mutable_data_ptr<int32_t>();
  args.choices = chosen.numel();
  args.rows = places.order.numel();
  args.experts = static_cast<int>(experts);
  args.step = static_cast<int>(step);
  kernels::PlaceRows(args, StreamOf(chosen));
}

}  // namespace

RowPlaces PlaceRows(const at::Tensor& chosen, int64_t experts, int64_t step) {
  FSDPD_CHECK(chosen.is_contiguous());
  const auto options = chosen.options().dtype(at::kInt);
  const RowPlaces places = {at::empty({MostRows(chosen.numel(), experts, step)}, options),
                            at::empty({chosen.numel()}, options), at::empty({experts}, options)};
  chosen.is_cuda() ? PlaceRowsOnCuda(chosen, step, places) : PlaceRowsOnCpu(chosen, step, places);
  return places;
}

at::Tensor GatherRows(const at::Tensor& from, const at::Tensor& places, int64_t divisor) {
  if (from.is_cuda()) {
    FSDPD_CHECK(from.is_contiguous() && places.is_contiguous());
    at::Tensor to = at::empty({places.size(0), from.size(1)}, from.options());
    kernels::GatherRows({from.const_data_ptr(), places.const_data_ptr<int32_t>(), to.mutable_data_ptr(),
                         to.size(0), to.size(1), static_cast<int>(divisor), DTypeOf(from.scalar_type())},
                        StreamOf(from));
    return to;
  }
  const at::Tensor row = divisor == 1 ? places : places.floor_divide(divisor);
  const at::Tensor of_none = places < 0;
  if (!of_none.any().item<bool>()) return from.index_select(0, row);
  if (from.size(0) == 0) return at::full({places.size(0), from.size(1)}, 0, from.options());
  return from.index_select(0, row.clamp_min(0)).masked_fill_(of_none.unsqueeze(-1), 0);
}

at::Tensor SumOfRows(const std::vector<at::Tensor>& parts, const at::Tensor& of_choice, int64_t per_token,
                     const at::Tensor& addend) {
  FSDPD_CHECK(parts.size() == 1 || parts.size() == 2);
  const at::Tensor& rows = parts[0];
  if (rows.is_cuda()) {
    for (const at::Tensor& part : parts) FSDPD_CHECK(part.is_contiguous() && part.sizes() == rows.sizes());
    FSDPD_CHECK(of_choice.is_contiguous() && (!addend.defined() || addend.is_contiguous()));
    const at::Tensor sum = at::empty({of_choice.numel() / per_token, rows.size(1)},
                                     addend.defined() ? addend.options() : rows.options().dtype(at::kFloat));
    kernels::SumRowsArgs args = {};
    args.rows = rows.const_data_ptr();
    if (parts.size() == 2) args.second = parts[1].const_data_ptr();
    args.of_choice = of_choice.const_data_ptr<int32_t>();
    args.addend = addend.defined() ? addend.const_data_ptr() : nullptr;
    args.sum = sum.mutable_data_ptr();
    args.tokens = sum.size(0);
    args.width = sum.size(1);
    args.per_token = static_cast<int>(per_token);
    args.type = DTypeOf(rows.scalar_type());
    args.sum_type = DTypeOf(sum.scalar_type());
    kernels::SumRows(args, StreamOf(rows));
    return sum;
  }
  at::Tensor sum;
  for (const at::Tensor& part : parts) {
    const at::Tensor own =
        part.index_select(0, of_choice).unflatten(0, {-1, per_token}).sum(1, /*keepdim=*/false, at::kFloat);
    sum = sum.defined() ? sum.add_(own) : own;
  }
  return addend.defined() ? sum.add_(addend).to(addend.scalar_type()) : sum;
}

}  // namespace fsdpd
