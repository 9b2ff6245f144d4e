// Permutation between tokens and rows of experts. A choice is one (token, k-th expert) pair; choices are
// numbered token by token. Each choice is a row; rows are sorted by expert, and by choice within an expert.
//
// On CUDA, grouped products require the rows of each expert to start at a multiple of kExpertRowStep, so
// there may be padding rows, which are zero. Only the device knows how many rows each expert has; buffers
// have the maximum number of rows, or a given capacity. LibTorch's operators and loops on the CPU,
// fsdp/kernels on CUDA. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdpd {

struct RowPlaces {
  at::Tensor order;      // [rows] int32: the choice of each row; -1: padding.
  at::Tensor of_choice;  // [choices] int32: the row of each choice; -1: no row here.
  at::Tensor ends;       // [experts] int32: where the rows of each expert end and the next one's start.
};

// `chosen`: [tokens x per_token] int64, below `experts`. The rows of an expert start at a multiple of `step`;
// if step is above 1, each expert has at least `step` rows.
RowPlaces PlaceRows(const at::Tensor& chosen, int64_t experts, int64_t step);

// For a rank that has a subset of the experts, and capacity for fewer rows than choices.
struct RowsHere {
  int64_t first;  // Experts [first, first + experts); `ends` covers only these.
  int64_t experts;
  int64_t step;
  int64_t capacity;     // Capacity in rows, without padding rows on CUDA.
  at::Tensor overflow;  // fp32 scalar, incremented by the overflow; results are unusable then.
};
RowPlaces PlaceRows(const at::Tensor& chosen, const RowsHere& here);

// Places rows by destination part (`chosen` is a part's index). Each part has a fixed capacity of `capacity`
// rows, at a fixed offset; the number of rows beyond it is added to `overflow`.
RowPlaces PlaceInParts(const at::Tensor& chosen, int64_t parts, int64_t capacity, const at::Tensor& overflow);

// Row r of the result, [rows x width], is from[places[r] / divisor], or zero if places[r] is negative. With
// `ends`, rows past the last end are undefined.
at::Tensor GatherRows(const at::Tensor& from, const at::Tensor& places, int64_t divisor = 1,
                      const at::Tensor& ends = {});
// Device address of the last end, i.e. the number of used rows; null without `ends`.
const int32_t* UsedRows(const at::Tensor& ends);

// Sums the rows of each token in fp32: [tokens x width]. `of_choice`: `per_token` choices per token; choices
// without a row are skipped. A row is the sum of its `parts`, one or two of [rows x width]. With an `addend`
// of the result's shape, added last, the sum is rounded to its type.
at::Tensor SumOfRows(const std::vector<at::Tensor>& parts, const at::Tensor& of_choice, int64_t per_token,
                     const at::Tensor& addend = {});
// The same, rounded to the type of `into`.
void SumOfRowsInto(const std::vector<at::Tensor>& parts, const at::Tensor& of_choice, int64_t per_token,
                   const at::Tensor& into);

// CPU only: calls `run` with each expert's index, first row and number of rows.
template <typename Run>
void ForEachExpert(const at::Tensor& ends, Run run) {
  const int32_t* end = ends.const_data_ptr<int32_t>();
  for (int64_t e = 0, begin = 0; e < ends.size(0); begin = end[e++]) run(e, begin, end[e] - begin);
}

}  // namespace fsdpd
