// Products of many experts' matrices, each with its own rows, and the way from tokens to rows and back.
//
// Rows are those of native_router.h; `of_expert` says how many each expert has, which may be none. Matrices
// of a layer's experts are one tensor, [experts x outputs x inputs]. A product for each expert, one after the
// other. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/model/native/native_router.h"

namespace fsdpd {

// [tokens x width] to [rows x width].
at::Tensor RowsOfTokens(const at::Tensor& tokens, const Routing& routing);

// Each token's rows added up, in fp32: [tokens x width].
at::Tensor SumOfRows(const at::Tensor& rows, const Routing& routing);

using RowCounts = std::vector<int64_t>;

// rows matrix^T, of each expert; of several matrices the outputs stand side by side in a row.
at::Tensor ExpertsForward(const at::Tensor& rows, const RowCounts& of_expert,
                          const std::vector<at::Tensor>& matrices);

// The gradient of the rows, from that of ExpertsForward's result.
at::Tensor ExpertsBackward(const at::Tensor& grad_out, const RowCounts& of_expert,
                           const std::vector<at::Tensor>& matrices);

// The gradients of the matrices as native_ops' WeightGradInto has it, undefined in `into` where frozen;
// `outputs` of each.
void ExpertsGradsInto(const at::Tensor& grad_out, const at::Tensor& rows, const RowCounts& of_expert,
                      int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into);

}  // namespace fsdpd
