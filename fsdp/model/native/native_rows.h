// The way from tokens to rows of experts and back. A choice is a token and one of its experts; choices are
// numbered token by token. Each is a row; rows are sorted by expert, and within one in the choices' order.
//
// On CUDA products of experts want each one's rows to begin at a multiple of kExpertRowStep, so there may be
// rows of no choice: they are zero. How many rows each expert has the device alone knows, and buffers have
// room for the most there can be, or for so many as are asked for. By LibTorch's operators and loops on the
// CPU, by fsdp/kernels on CUDA. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdpd {

struct RowPlaces {
  at::Tensor order;      // [rows] int32: of which choice each row is; -1: of none.
  at::Tensor of_choice;  // [choices] int32: the row of each; -1: none here.
  at::Tensor ends;       // [experts] int32: where each one's rows end, and the next one's begin.
};

// `chosen`: [tokens x per_token] int64, numbers below `experts`. An expert's rows begin at a multiple of
// `step`, and above 1 it has at least so many.
RowPlaces PlaceRows(const at::Tensor& chosen, int64_t experts, int64_t step);

// Where a rank has some of the experts, and room for less than all choices.
struct RowsHere {
  int64_t first;  // These experts are `experts` from this one on, and `ends` has theirs alone.
  int64_t experts;
  int64_t step;
  int64_t room;        // For so many rows, and on CUDA for what fills them up.
  at::Tensor lacking;  // fp32 scalar: what is beyond that is added. There, the results are of no use.
};
RowPlaces PlaceRows(const at::Tensor& chosen, const RowsHere& here);

// Rows for each of `parts`, what is `chosen` being one of those: each has room for so many, the next one's
// begin behind that, and rows beyond it are added to `lacking`.
RowPlaces PlaceInParts(const at::Tensor& chosen, int64_t parts, int64_t room, const at::Tensor& lacking);

// Row r is from's row places[r] / divisor; zero where places[r] is below 0. [rows x width]. With `ends`, rows
// beyond the last one's are undefined.
at::Tensor GatherRows(const at::Tensor& from, const at::Tensor& places, int64_t divisor = 1,
                      const at::Tensor& ends = {});
// The address of the number of rows that are not beyond it; null without `ends`.
const int32_t* UsedRows(const at::Tensor& ends);

// Each token's rows added up, in fp32: [tokens x width]. `of_choice`: of `per_token` choices each, of which
// those without a row add nothing. A row is the sum of its `parts`, one or two of [rows x width]. With an
// `addend` of the result's shape, added last, the sum is rounded to its type.
at::Tensor SumOfRows(const std::vector<at::Tensor>& parts, const at::Tensor& of_choice, int64_t per_token,
                     const at::Tensor& addend = {});
// The same, rounded to the type of `into`.
void SumOfRowsInto(const std::vector<at::Tensor>& parts, const at::Tensor& of_choice, int64_t per_token,
                   const at::Tensor& into);

// On the CPU: calls `run` with each expert's number, first row and number of rows.
template <typename Run>
void ForEachExpert(const at::Tensor& ends, Run run) {
  const int32_t* end = ends.const_data_ptr<int32_t>();
  for (int64_t e = 0, begin = 0; e < ends.size(0); begin = end[e++]) run(e, begin, end[e] - begin);
}

}  // namespace fsdpd
