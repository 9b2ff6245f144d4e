// Several matrices that read the same input, as one: the outputs stand side by side in a row, in the order of
// the matrices. Queries, keys and values are such a product, and so are SwiGLU's gates and ups.
//
// Where the matrices are neighbours in memory, as parameters of one bucket that follow each other without
// padding are, it is one product: larger ones run at a higher rate, and the input's gradient is summed in the
// product's accumulators rather than in memory. Where something parts them (padding, a bias, a bucket), it is
// one product for each, into the same rows. The same holds for the buffers that their gradients go to.
//
// In FP8 both operands of each product are rounded first, along the rows that it adds up: of the input's
// gradient and of the matrices' these are columns of what is in memory. Matrices are rounded as if they were
// neighbours, so that nothing but speed depends on where they are. Biases and addends are not rounded.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/model/native/native_fp8.h"

namespace fsdpd {

using Matrices = std::vector<at::Tensor>;  // [outputs x inputs] each.

enum class Operands { kAsTheyAre, kFp8 };

// The matrices' rows as one matrix; undefined where they are no neighbours.
at::Tensor AsOne(const Matrices& matrices);

// `into`: the result, [rows x outputs] of all matrices, contiguous. x: [rows x inputs]. `biases`: one for
// each matrix, undefined where it has none; or nothing at all.
void LinearForwardInto(const at::Tensor& x, const Matrices& matrices, const Matrices& biases, at::Tensor into,
                       Operands operands = Operands::kAsTheyAre);
// Of x that is in FP8 already, as all of the following that take Fp8.
void LinearForwardInto(const Fp8& x, const Matrices& matrices, const Matrices& biases, at::Tensor into);

int64_t OutputsOf(const Matrices& matrices);

at::Tensor LinearForward(const at::Tensor& x, const Matrices& matrices, const Matrices& biases = {});

// residual + x matrix^T, rounded once. Contiguous.
at::Tensor AddLinear(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& matrix,
                     Operands operands = Operands::kAsTheyAre);
at::Tensor AddLinear(const at::Tensor& residual, const Fp8& x, const at::Tensor& matrix);

// The gradient of x. `grad_out`: LinearForward's result's.
void LinearBackwardInto(const at::Tensor& grad_out, const Matrices& matrices, at::Tensor into,
                        Operands operands = Operands::kAsTheyAre);
void LinearBackwardInto(const Fp8& grad_out, const Matrices& matrices, at::Tensor into);
at::Tensor LinearBackward(const at::Tensor& grad_out, const Matrices& matrices);

// Gradients of matrices and biases as native_ops' WeightGradInto and BiasGradInto have it. `outputs`: of each
// matrix, also of those that are frozen, whose place in `into` is undefined.
void LinearGradsInto(const at::Tensor& grad_out, const at::Tensor& x, const std::vector<int64_t>& outputs,
                     bool accumulate, const Matrices& into, const Matrices& biases_into = {},
                     Operands operands = Operands::kAsTheyAre);
// Of the matrices, from Fp8Columns of both.
void LinearGradsInto(const Fp8& grad_out, const Fp8& x, const std::vector<int64_t>& outputs, bool accumulate,
                     const Matrices& into);

}  // namespace fsdpd
