// Several matrices that read the same input, as one: the outputs stand side by side in a row, in the order of
// the matrices. Queries, keys and values are such a product, and so are SwiGLU's gates and ups.
//
// Where the matrices are neighbours in memory, as parameters of one bucket that follow each other without
// padding are, it is one product: larger ones run at a higher rate, and the input's gradient is summed in the
// product's accumulators rather than in memory. Where something parts them (padding, a bias, a bucket), it is
// one product for each, into the same rows. The same holds for the buffers that their gradients go to.
//
// Weights that are in FP8 are one product always; they are copied beside each other where something parts
// them. The other operand is rounded first, along what the product adds up: of the matrices' gradients these
// are columns of what is in memory, and both operands are rounded. Biases and addends are not.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/model/native/native_fp8.h"

namespace fsdpd {

using Matrices = std::vector<at::Tensor>;  // [outputs x inputs] each.

// Matrices that read the same input: as they are, or in FP8, as one.
struct Weights {
  Weights(Matrices matrices);                 // NOLINT: stands for them.
  Weights(const std::vector<Fp8>& matrices);  // NOLINT

  Matrices plain;
  Fp8 fp8;
  Fp8 turned;                    // What LinearBackwardInto reads of fp8.
  std::vector<int64_t> outputs;  // Of each matrix.

  bool in_fp8() const { return fp8.defined(); }
  int64_t all_outputs() const;
  int64_t inputs() const { return in_fp8() ? fp8.values.size(1) : plain[0].size(1); }
};

// Scales of several matrices' rows as those of one.
at::Tensor JoinedScales(const std::vector<at::Tensor>& scales);

// With `turned`, where there is FP8.
Weights Turned(Weights weights);

enum class Operands { kAsTheyAre, kFp8 };

// The matrices' rows as one matrix; undefined where they are no neighbours.
at::Tensor AsOne(const Matrices& matrices);

// `into`: the result, [rows x outputs] of all matrices, contiguous. x: [rows x inputs]. `biases`: one for
// each matrix, undefined where it has none; or nothing at all.
void LinearForwardInto(const at::Tensor& x, const Weights& weights, const Matrices& biases, at::Tensor into);
// Of x that is in FP8 already, as all of the following that take Fp8: then weights are too.
void LinearForwardInto(const Fp8& x, const Weights& weights, const Matrices& biases, at::Tensor into);

int64_t OutputsOf(const Matrices& matrices);

at::Tensor LinearForward(const at::Tensor& x, const Weights& weights, const Matrices& biases = {});

// residual + x matrix^T, rounded once. Contiguous.
at::Tensor AddLinear(const at::Tensor& residual, const at::Tensor& x, const Weights& matrix);
at::Tensor AddLinear(const at::Tensor& residual, const Fp8& x, const Weights& matrix);

// The gradient of x. `grad_out`: LinearForward's result's; in FP8, multiplied with the weights' scales.
// REQUIRES: the weights are Turned.
void LinearBackwardInto(const at::Tensor& grad_out, const Weights& weights, at::Tensor into);
void LinearBackwardInto(const Fp8& grad_out, const Weights& weights, at::Tensor into);
at::Tensor LinearBackward(const at::Tensor& grad_out, const Weights& weights);

// Gradients of matrices and biases as native_ops' WeightGradInto and BiasGradInto have it. `outputs`: of each
// matrix, also of those that are frozen, whose place in `into` is undefined. `x_largest`: Fp8Columns'.
void LinearGradsInto(const at::Tensor& grad_out, const at::Tensor& x, const std::vector<int64_t>& outputs,
                     bool accumulate, const Matrices& into, const Matrices& biases_into = {},
                     Operands operands = Operands::kAsTheyAre, const at::Tensor& x_largest = {});
// Of the matrices, from Fp8Columns of both.
void LinearGradsInto(const Fp8& grad_out, const Fp8& x, const std::vector<int64_t>& outputs, bool accumulate,
                     const Matrices& into);

}  // namespace fsdpd
