// Products of a unit's matrices with the rows of tokens: in FP8 where the matrices are, over tensor-parallel
// shards, after a norm, and of experts; and their backward.
//
// Between the sharded matrices each rank has a part of the tokens (token_parts.h). With fewer key heads than
// ranks, K and V matrices are replicated, and each rank computes only the head that its query heads read.
//
// Gradients of matrices are computed immediately, later (WeightGrads::kLater), or while rows are sent to
// other ranks. Exceptions of LibTorch pass through.
#pragma once

#include <vector>

#include "fsdp/model/native/native_dispatch.h"
#include "fsdp/model/native/native_experts.h"
#include "fsdp/model/native/native_fp8_experts.h"
#include "fsdp/model/native/native_linear.h"
#include "fsdp/model/native/native_unit.h"

namespace fsdpd {

class NativeProducts : public NativeUnit {
 protected:
  // A product for the gradients of matrices that read the same input.
  struct MatrixGrads {
    at::Tensor grad_out;
    at::Tensor x;
    std::vector<int> matrices;  // Parameter indices, like biases.
    std::vector<int> biases;
    at::Tensor grad_low = {};   // Of adapters.
    Fp8 grad_out_columns = {};  // Already quantized operands, in place of grad_out or x.
    Fp8 x_columns = {};
    at::Tensor x_largest = {};  // From RmsNormBackward.
  };

  // State of one call of Backward.
  struct BackwardCall {
    const ParamGrads& grads;
    WeightGrads when;
    std::vector<MatrixGrads> later;
    std::vector<MatrixGrads> overlapped = {};  // Deferred until they can overlap with communication.

    at::Tensor Into(int index) const { return index < 0 ? at::Tensor() : grads.into[index]; }
  };
  // A norm, and the matrices that read its output.
  struct NormedParams {
    int norm;
    std::vector<int> matrices;
    std::vector<int> biases;
    bool narrow_only = false;  // LoraAdapters::narrow_only of NormedProduct.
  };
  // The gradient of the matrices' outputs: plain, or already FP8.
  struct OutputGrads {
    at::Tensor plain;
    Fp8 rows = {};  // Multiplied by the scales of the weights.
    Fp8 columns = {};
  };

  NativeProducts(UnitFacts facts, at::ScalarType compute, const LlamaConfig& config);

  const LlamaConfig& config() const { return config_; }  // With this rank's number of heads.

  // The rows of a parameter that this rank reads, or of its gradient that it writes: the rows of its own head
  // for K and V matrices that are replicated across the tensor-parallel group; otherwise all rows.
  at::Tensor LocalRows(int index, const at::Tensor& of) const;
  std::vector<at::Tensor> ParamsOf(const std::vector<int>& indices) const;

  // Operands for a product with these matrices, of which either all or none are FP8.
  Weights WeightsOf(const std::vector<int>& matrices) const;
  std::vector<Fp8> Fp8Of(const std::vector<int>& matrices) const;
  at::Tensor ScalesOf(const std::vector<int>& matrices) const;  // Row scales, concatenated.
  bool InFp8(const std::vector<int>& matrices) const { return facts().params[matrices.front()].fp8; }
  // Whether the input of these matrices is quantized to FP8 where it is produced: only if it is not sent to
  // other ranks.
  bool ReadsRounded(const std::vector<int>& matrices) const;

  // What backward needs of NormedProduct.
  struct NormedSaved {
    at::Tensor* rstd;
    at::Tensor* low;
  };
  // The outputs of the matrices for all tokens, from the norm of x, this rank's tokens.
  at::Tensor NormedProduct(const at::Tensor& x, const NormedParams& params, const NormedSaved& saved) const;
  // residual + x matrix^T, summed over the tensor-parallel shards of both.
  at::Tensor AddProduct(const at::Tensor& residual, const at::Tensor& x, int matrix, at::Tensor* low) const;
  // The gradient of x of the product x matrix^T, for all tokens. `grad_sum` initially has this rank's tokens.
  at::Tensor ProductBackward(const at::Tensor& grad_sum, int matrix, AdapterBackward* adapters,
                             bool narrow_only = false) const;
  // Whether SwiGLU between dense matrices adds the wide products of their adapters: those of gate and up, and
  // in the backward that of the input's gradient of `down`. Gate and up are then saved without them.
  bool SwigluAddsWide(const std::vector<int>& gate_up, int down) const {
    return TakesAdaptedSwiglu(WeightsOf(gate_up), WeightsOf({down}));
  }
  // From the gradient of the matrices' outputs to the gradient of the norm's input x. `grad` is the gradient
  // that reaches x over the residual connection.
  at::Tensor NormedBackward(const at::Tensor& grad, OutputGrads grad_outputs, const at::Tensor& x,
                            const NormedSaved& saved, const NormedParams& params, BackwardCall* call) const;

  // The token rows for products with the gradients of these matrices.
  ExpertRows RowsFor(const at::Tensor& tokens, const Routing& routing, const TokenDispatch& dispatch,
                     const std::vector<int>& matrices) const;
  // The three products of native_experts.h, in FP8 if these matrices are; the forward takes tokens or rows.
  at::Tensor ExpertsOfTokens(const at::Tensor& tokens, const Routing& routing, const TokenDispatch& dispatch,
                             const std::vector<int>& matrices) const;
  at::Tensor ExpertsOfRows(const at::Tensor& rows, const at::Tensor& ends, int matrix) const;
  std::vector<at::Tensor> ExpertsInputGrads(const ExpertRows& grad_out, const at::Tensor& ends,
                                            const std::vector<int>& matrices) const;
  void ExpertsMatrixGrads(const ExpertRows& grad_out, const ExpertRows& rows, const at::Tensor& ends,
                          const std::vector<int>& matrices, const BackwardCall& call) const;

  void Add(MatrixGrads product, BackwardCall* call) const;  // Computes the gradients now, or defers them.
  // Overlapped with the next communication, or deferred.
  void AddOverlapped(MatrixGrads product, BackwardCall* call) const;
  void Compute(const MatrixGrads& product, const ParamGrads& grads) const;
  // For the backward of these matrices, given `low` of the forward.
  AdapterBackward AdapterBackwardOf(const std::vector<int>& matrices, at::Tensor low,
                                    const ParamGrads& grads) const;

 private:
  bool HasRemoteRows(int index) const;
  // LocalRows of the parameter's gradient; the other rows are zero.
  at::Tensor OwnGrad(int index, const ParamGrads& grads) const;

  // Of the adapter of a matrix; -1: it has none.
  struct AdapterParams {
    int a = -1;
    int b = -1;
  };
  AdapterParams AdapterOf(int matrix) const {
    return adapters_.empty() ? AdapterParams() : adapters_[matrix];
  }

  const LlamaConfig config_;
  const std::vector<int> of_keys_;  // The parameters of K and V; -1 for those that the configuration lacks.
  std::vector<AdapterParams> adapters_;  // By parameter; empty: no adapters.
};

}  // namespace fsdpd
