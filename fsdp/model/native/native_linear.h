// Fused linear layer: several matrices that read the same input, as one product. Outputs are concatenated in
// each row, in the order of the matrices. Examples: queries, keys and values; gates and ups of SwiGLU.
//
// Matrices that are adjacent in memory, like consecutive parameters of a bucket without padding between them,
// are one product: larger products reach higher rates, and the input's gradient is summed in the product's
// accumulators rather than in memory. If something separates them (padding, a bias, a bucket boundary), there
// is one product per matrix, into the same rows. The same holds for gradient buffers.
//
// FP8 weights are always one product; they are copied next to each other if necessary. The other operand is
// quantized along the dimension that is summed over: for matrix gradients that means columns, of both
// operands. Biases and addends are not quantized.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/model/native/native_fp8.h"

namespace fsdpd {

using Matrices = std::vector<at::Tensor>;  // [outputs x inputs] each.

// Low-rank adapters of matrices that read the same input: each adds scale (x A^T) B^T to a product x W^T.
//
// The narrow products scale x A^T (`low`) and scale grad_out B (`grad_low`) of all adapters are columns of
// one tensor [rows x sum of ranks], so that the input is read once if the A are adjacent. The wide products
// low B^T and grad_low A are computed first, and the products of the matrices are added to them.
struct LoraAdapters {
  Matrices a;  // [rank x inputs] each, one per matrix; undefined for a matrix without an adapter. Likewise b.
  Matrices b;  // [outputs x rank] each.
  double scale = 0;
  bool narrow_only = false;  // The caller adds the wide products, for example in SwiGLU.

  int64_t ranks() const;  // The sum.
};

// Matrices that read the same input: plain, possibly with adapters, or concatenated in FP8.
struct Weights {
  Weights(Matrices matrices, LoraAdapters adapters = {});  // NOLINT: implicit by design.
  Weights(const std::vector<Fp8>& matrices);               // NOLINT

  Matrices plain;
  LoraAdapters adapters;
  Fp8 fp8;
  Fp8 transposed;                // Transpose of fp8, which LinearBackwardInto reads.
  std::vector<int64_t> outputs;  // Per matrix.

  bool in_fp8() const { return fp8.defined(); }
  int64_t all_outputs() const;
  int64_t inputs() const { return in_fp8() ? fp8.values.size(1) : plain[0].size(1); }
  bool adapted() const { return adapters.ranks() > 0; }
  bool adds_wide() const { return adapted() && !adapters.narrow_only; }
  // Uninitialized memory for `low` or `grad_low` of these rows; undefined without adapters.
  at::Tensor EmptyLow(const at::Tensor& rows) const;
};

// What the backward of weights with adapters computes besides the gradient of x. Tensor parallelism calls it
// for one part of the tokens after the other, so gradients of B in bf16 are rounded once per part.
struct AdapterBackward {
  at::Tensor low;       // Of the forward.
  at::Tensor grad_low;  // From EmptyLow; receives it.
  Matrices b_into;      // Gradients of B, one per matrix; added to with `accumulate`.
  bool accumulate = false;

  AdapterBackward Part(int64_t begin, int64_t rows) const;
};

// Concatenates the row scales of several matrices.
at::Tensor JoinedScales(const std::vector<at::Tensor>& scales);

// Fills in `transposed` if the weights are FP8.
Weights Transposed(Weights weights);

enum class Operands { kUnchanged, kFp8 };

// A view of adjacent matrices as one matrix; undefined if they are not adjacent.
at::Tensor AsOne(const Matrices& matrices);

// `into`: [rows x outputs of all matrices], contiguous. x: [rows x inputs]. `biases`: one per matrix,
// undefined for a matrix without; or empty. `low`: from EmptyLow; defined if the weights have adapters.
void LinearForwardInto(const at::Tensor& x, const Weights& weights, const Matrices& biases, at::Tensor into,
                       const at::Tensor& low = {});
// With x already in FP8 (like all overloads below that take Fp8): the weights must be FP8 too.
void LinearForwardInto(const Fp8& x, const Weights& weights, const Matrices& biases, at::Tensor into);

int64_t OutputsOf(const Matrices& matrices);

// `low`: set if the weights have adapters.
at::Tensor LinearForward(const at::Tensor& x, const Weights& weights, const Matrices& biases = {},
                         at::Tensor* low = nullptr);

// residual + x matrix^T, rounded once; with an adapter, residual + adapter is rounded first. Contiguous.
at::Tensor AddLinear(const at::Tensor& residual, const at::Tensor& x, const Weights& matrix,
                     const at::Tensor& low = {});
at::Tensor AddLinear(const at::Tensor& residual, const Fp8& x, const Weights& matrix);

// The gradient of x. `grad_out`: gradient of LinearForward's result; if FP8, multiplied by the weights'
// scales. REQUIRES: the weights are Transposed.
void LinearBackwardInto(const at::Tensor& grad_out, const Weights& weights, at::Tensor into,
                        const AdapterBackward& adapters = {});
void LinearBackwardInto(const Fp8& grad_out, const Weights& weights, at::Tensor into);
at::Tensor LinearBackward(const at::Tensor& grad_out, const Weights& weights,
                          const AdapterBackward& adapters = {});

// Gradients of matrices and biases, with the semantics of WeightGradInto and BiasGradInto (native_ops.h).
// `outputs`: per matrix, including frozen ones, which are undefined in `into`. `x_largest`: as for
// Fp8Columns.
void LinearGradsInto(const at::Tensor& grad_out, const at::Tensor& x, const std::vector<int64_t>& outputs,
                     bool accumulate, const Matrices& into, const Matrices& biases_into = {},
                     Operands operands = Operands::kUnchanged, const at::Tensor& x_largest = {});
// Gradients of the A of the weights' adapters: `into` has one tensor per matrix.
void AdapterInputGradsInto(const at::Tensor& grad_low, const at::Tensor& x, bool accumulate,
                           const Matrices& into);
// Gradients of the matrices, from the Fp8Columns of both operands.
void LinearGradsInto(const Fp8& grad_out, const Fp8& x, const std::vector<int64_t>& outputs, bool accumulate,
                     const Matrices& into);

// ---- SwiGLU between matrices with adapters, on CUDA. It adds the wide products while it reads gate and up,
// and in the backward the gradient of its output; the products of the matrices are then `narrow_only`. The
// sums are not rounded, and the backward repeats them with the same bits.

// Weights, and `low` of their product or `grad_low` of its backward; undefined if no matrix has an adapter.
struct WithLow {
  const Weights& weights;
  const at::Tensor& low;
};

bool TakesAdaptedSwiglu(const Weights& gate_up, const Weights& down);
// `of`: the weights of gate and up.
at::Tensor AdaptedSwigluForward(const at::Tensor& gate_up, const WithLow& of);
// As SwigluBackward (native_ops.h): overwrites gate_up with the gradient of the sums, and `grad_product` with
// the product.
void AdaptedSwigluBackward(const at::Tensor& grad_product, const at::Tensor& gate_up, const WithLow& of,
                           const WithLow& down);

}  // namespace fsdpd
