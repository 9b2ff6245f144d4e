#include "fsdp/model/native/native_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "fsdp/kernels/experts/expert_rows.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

kernels::Stream StreamOf(const at::Tensor& x) { return kernels::CurrentStream(x.get_device()); }

// An expert without a choice has `step` rows; any other has fewer than `step` rows of padding.
int64_t MostRows(int64_t choices, int64_t experts, int64_t step) {
  return step == 1 ? choices : RoundUp(choices + experts * step, step);
}

// Including padding.
int64_t RowsOfExpert(int64_t choices, int64_t step) {
  return step == 1 ? choices : std::max(step, RoundUp(choices, step));
}

// `each`: see PlaceRowsArgs.
RowPlaces PlaceRowsOnCpu(const at::Tensor& chosen, const RowsHere& here, int64_t each) {
  const int64_t* expert = chosen.const_data_ptr<int64_t>();
  const int64_t choices = chosen.numel();
  const auto own = [&](int64_t i) {
    return expert[i] >= here.first && expert[i] < here.first + here.experts ? expert[i] - here.first : -1;
  };
  std::vector<int64_t> next(here.experts + 1);  // Counts, then the next row of each expert.
  int64_t all = 0;
  for (int64_t i = 0; i < choices; ++i) {
    if (own(i) < 0) continue;
    ++next[own(i) + 1];
    ++all;
  }
  if (each == 0 && all > here.capacity) here.overflow.add_(static_cast<double>(all - here.capacity));
  RowPlaces places;
  places.ends = at::empty({here.experts}, chosen.options().dtype(at::kInt));
  int32_t* const ends = places.ends.mutable_data_ptr<int32_t>();
  for (int64_t e = 0; e < here.experts; ++e) {
    if (each > 0 && next[e + 1] > each) here.overflow.add_(static_cast<double>(next[e + 1] - each));
    next[e + 1] = next[e] + (each > 0 ? each : RowsOfExpert(next[e + 1], here.step));
    ends[e] = static_cast<int32_t>(next[e + 1]);
  }
  const int64_t rows = each > 0         ? here.experts * each
                       : here.step == 1 ? all
                                        : MostRows(std::max(all, here.capacity), here.experts, here.step);
  places.order = at::full({rows}, -1, places.ends.options());
  places.of_choice = at::full({choices}, -1, places.ends.options());
  int32_t *order = places.order.mutable_data_ptr<int32_t>(),
          *of_choice = places.of_choice.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < choices; ++i) {
    if (own(i) < 0 || (each > 0 && next[own(i)] == ends[own(i)])) continue;
    of_choice[i] = static_cast<int32_t>(next[own(i)]++);
    order[of_choice[i]] = static_cast<int32_t>(i);
  }
  return places;
}

RowPlaces PlaceRowsOnCuda(const at::Tensor& chosen, const RowsHere& here, int64_t each) {
  FSDPD_CHECK(here.experts <= kernels::kMostExperts);
  const auto options = chosen.options().dtype(at::kInt);
  const int64_t rows = each > 0 ? here.experts * each : MostRows(here.capacity, here.experts, here.step);
  RowPlaces places = {at::empty({rows}, options), at::empty({chosen.numel()}, options),
                      at::empty({here.experts}, options)};
  const at::Tensor counts = at::empty({kernels::PlaceRowsBlocks(chosen.numel()), here.experts}, options);
  kernels::PlaceRowsArgs args = {};
  args.chosen = chosen.const_data_ptr<int64_t>();
  args.order = places.order.mutable_data_ptr<int32_t>();
  args.of_choice = places.of_choice.mutable_data_ptr<int32_t>();
  args.ends = places.ends.mutable_data_ptr<int32_t>();
  args.counts = counts.mutable_data_ptr<int32_t>();
  args.overflow = here.overflow.defined() ? here.overflow.mutable_data_ptr<float>() : nullptr;
  args.choices = chosen.numel();
  args.rows = places.order.numel();
  args.first = static_cast<int>(here.first);
  args.experts = static_cast<int>(here.experts);
  args.step = static_cast<int>(here.step);
  args.each = each;
  kernels::PlaceRows(args, StreamOf(chosen));
  return places;
}

RowPlaces Place(const at::Tensor& chosen, const RowsHere& here, int64_t each) {
  FSDPD_CHECK(chosen.is_contiguous());
  return chosen.is_cuda() ? PlaceRowsOnCuda(chosen, here, each) : PlaceRowsOnCpu(chosen, here, each);
}

void SumOnCpu(const std::vector<at::Tensor>& parts, const at::Tensor& of_choice, int64_t per_token,
              const at::Tensor& addend, const at::Tensor& into) {
  at::Tensor sum;
  for (const at::Tensor& part : parts) {
    const at::Tensor own =
        GatherRows(part, of_choice).unflatten(0, {-1, per_token}).sum(1, /*keepdim=*/false, at::kFloat);
    sum = sum.defined() ? sum.add_(own) : own;
  }
  if (addend.defined()) sum.add_(addend);
  into.copy_(sum);
}

void SumInto(const std::vector<at::Tensor>& parts, const at::Tensor& of_choice, int64_t per_token,
             const at::Tensor& addend, const at::Tensor& into) {
  FSDPD_CHECK((parts.size() == 1 || parts.size() == 2) && into.is_contiguous());
  const at::Tensor& rows = parts[0];
  for (const at::Tensor& part : parts) FSDPD_CHECK(part.is_contiguous() && part.sizes() == rows.sizes());
  FSDPD_CHECK(of_choice.is_contiguous() && (!addend.defined() || addend.is_contiguous()));
  if (!rows.is_cuda()) return SumOnCpu(parts, of_choice, per_token, addend, into);
  kernels::SumRowsArgs args = {};
  args.rows = rows.const_data_ptr();
  if (parts.size() == 2) args.second = parts[1].const_data_ptr();
  args.of_choice = of_choice.const_data_ptr<int32_t>();
  args.addend = addend.defined() ? addend.const_data_ptr() : nullptr;
  args.sum = into.mutable_data_ptr();
  args.tokens = into.size(0);
  args.width = into.size(1);
  args.per_token = static_cast<int>(per_token);
  args.type = DTypeOf(rows.scalar_type());
  args.sum_type = DTypeOf(into.scalar_type());
  kernels::SumRows(args, StreamOf(rows));
}

}  // namespace

RowPlaces PlaceRows(const at::Tensor& chosen, int64_t experts, int64_t step) {
  return PlaceRows(chosen, {/*first=*/0, experts, step, /*capacity=*/chosen.numel(), /*overflow=*/{}});
}

RowPlaces PlaceRows(const at::Tensor& chosen, const RowsHere& here) {
  return Place(chosen, here, /*each=*/0);
}

RowPlaces PlaceInParts(const at::Tensor& chosen, int64_t parts, int64_t capacity,
                       const at::Tensor& overflow) {
  return Place(chosen, {/*first=*/0, parts, /*step=*/1, parts * capacity, overflow}, capacity);
}

const int32_t* UsedRows(const at::Tensor& ends) {
  return ends.defined() ? ends.const_data_ptr<int32_t>() + ends.numel() - 1 : nullptr;
}

at::Tensor GatherRows(const at::Tensor& from, const at::Tensor& places, int64_t divisor,
                      const at::Tensor& ends) {
  FSDPD_CHECK(from.is_contiguous() && places.is_contiguous());
  if (from.is_cuda()) {
    at::Tensor to = at::empty({places.size(0), from.size(1)}, from.options());
    kernels::GatherRows(
        {from.const_data_ptr(), places.const_data_ptr<int32_t>(), to.mutable_data_ptr(), UsedRows(ends),
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
  const at::Tensor sum =
      at::empty({of_choice.numel() / per_token, parts[0].size(1)},
                addend.defined() ? addend.options() : parts[0].options().dtype(at::kFloat));
  SumInto(parts, of_choice, per_token, addend, sum);
  return sum;
}

void SumOfRowsInto(const std::vector<at::Tensor>& parts, const at::Tensor& of_choice, int64_t per_token,
                   const at::Tensor& into) {
  SumInto(parts, of_choice, per_token, /*addend=*/{}, into);
}

}  // namespace fsdpd
