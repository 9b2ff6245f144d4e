// Products of many experts' matrices, each with its own rows, and SwiGLU between them.
//
// Rows are those of native_rows.h, and `ends` is theirs. Matrices of a layer's experts are one tensor,
// [experts x outputs x inputs]. On the CPU a product for each expert, one after the other; on CUDA one
// for all (fsdp/kernels/grouped_product.h), which waits for nothing. Rows beyond the last end are
// undefined in every result there. In FP8: native_fp8_experts.h. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdpd {

// rows matrix^T, of each expert; of several matrices the outputs stand side by side in a row.
at::Tensor ExpertsForward(const at::Tensor& rows, const at::Tensor& ends,
                          const std::vector<at::Tensor>& matrices);

// The parts whose sum is the rows' gradient, from that of ExpertsForward's result: on CUDA one for each
// matrix, as products there do not add to what is there.
std::vector<at::Tensor> ExpertsBackward(const at::Tensor& grad_out, const at::Tensor& ends,
                                        const std::vector<at::Tensor>& matrices);

// The gradients of the matrices as native_ops' WeightGradInto has it, undefined in `into` where frozen;
// `outputs` of each. On CUDA by way of one gradient in the compute type where that is not the buffer's, or
// with `accumulate`.
void ExpertsGradsInto(const at::Tensor& grad_out, const at::Tensor& rows, const at::Tensor& ends,
                      int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into);

// SwiGLU's product (native_ops.h), each row of it multiplied with its weight. `weights`: [rows x 1] fp32.
// With `ends`, rows beyond the last one's are undefined, here and back.
at::Tensor WeighedSwigluForward(const at::Tensor& gate_up, const at::Tensor& weights,
                                const at::Tensor& ends = {});

struct WeighedSwigluGrads {
  at::Tensor product;  // Forward's result again.
  at::Tensor weights;  // Their gradient, [rows x 1] fp32.
};

// Overwrites gates and ups with their gradients, and `grad_product`.
WeighedSwigluGrads WeighedSwigluBackward(at::Tensor grad_product, const at::Tensor& gate_up,
                                         const at::Tensor& weights, const at::Tensor& ends = {});

}  // namespace fsdpd
