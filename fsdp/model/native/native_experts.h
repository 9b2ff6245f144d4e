// Expert FFN: grouped products, each expert with its own rows, and SwiGLU between them.
//
// Rows and `ends` are those of native_rows.h. The matrices of all experts of a layer are one tensor, [experts
// x outputs x inputs]. The CPU computes one product per expert; CUDA one grouped product
// (fsdp/kernels/experts/grouped_product.h), without synchronization. On CUDA, rows past the last end are
// undefined in every result. For FP8 see native_fp8_experts.h. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdpd {

// rows matrix^T for each expert. With several matrices their outputs are concatenated in each row.
at::Tensor ExpertsForward(const at::Tensor& rows, const at::Tensor& ends,
                          const std::vector<at::Tensor>& matrices);

// Terms whose sum is the gradient of the rows, from the gradient of ExpertsForward's result. On CUDA one term
// per matrix, since grouped products cannot accumulate into an existing result.
std::vector<at::Tensor> ExpertsBackward(const at::Tensor& grad_out, const at::Tensor& ends,
                                        const std::vector<at::Tensor>& matrices);

// Gradients of the matrices with the semantics of WeightGradInto (native_ops.h); undefined in `into` if
// frozen. `outputs`: per matrix. CUDA goes through a temporary in the compute type if the buffer has another
// type, or with `accumulate`.
void ExpertsGradsInto(const at::Tensor& grad_out, const at::Tensor& rows, const at::Tensor& ends,
                      int64_t outputs, bool accumulate, const std::vector<at::Tensor>& into);

// SwiGLU (native_ops.h) with each row multiplied by its weight. `weights`: [rows x 1] fp32. With `ends`, rows
// past the last end are undefined, in backward too.
at::Tensor WeighedSwigluForward(const at::Tensor& gate_up, const at::Tensor& weights,
                                const at::Tensor& ends = {});

struct WeighedSwigluGrads {
  at::Tensor product;  // The recomputed result of forward.
  at::Tensor weights;  // Gradient of the weights, [rows x 1] fp32.
};

// Overwrites gate_up with its gradient; `grad_product` is overwritten too.
WeighedSwigluGrads WeighedSwigluBackward(at::Tensor grad_product, const at::Tensor& gate_up,
                                         const at::Tensor& weights, const at::Tensor& ends = {});

}  // namespace fsdpd
