// A decoder block of the Llama family: x + attention(norm(x)), then the same with SwiGLU.
//
// What Forward keeps, for T tokens, widths hidden H, query Q, key K, intermediate I, c bytes an element in
// the compute type, h query heads and g key heads (the memory plan, fsdp/plan/model/model_facts.cc, says the
// same):
//
//   kAll        T c (2 H + 2 Q + 2 K + 2 I) + 4 T (2 + h)    [qk_norm: + T c (Q + K) + 4 T (h + g)]
//               x, q, k, v, attention's output, the residual sum, gate, up; 1/rms of two norms, attention's
//               log-sum-exp. With qk_norm also q and k before their norms.
//   kSelective  T c (2 H + 2 Q + 2 K) + 4 T (1 + h)
//               without gate and up, whose product runs again, and with qk_norm q and k before their norms
//               alone.
//   kInput      T c H
//               x. Everything runs again, apart from the last product, which only the next unit needed.
//
// Ranks that share matrices have a slice each of heads and intermediate, whole heads, and between the
// matrices a part of the tokens (token_parts.h): above, x and the residual sum are then of that part, as are
// the norms' 1/rms, and Q, K, I, h and g of the slice. Of key heads there may be fewer than ranks: then each
// computes the one that its query heads read, from matrices that all of them have whole.
//
// In a layer with experts the FFN's rows are not tokens but choices, per_token of them for each (see
// native_router.h), and beside gate and up it keeps 4 T experts + 20 T per_token bytes of the routing, as
// long as those. SwiGLU's product is multiplied with how much the choice counts before the last matrix. Of
// ranks that have the experts among them, tokens or rows go to who has their expert, and what comes of them
// back (native_dispatch.h): then gate and up are of all rows that there is room for here, and of the routing
// 4 T experts + 8 T per_token bytes are kept, 8 for each of those rows, and 4 for each choice of all ranks,
// or where rows travel for each of its own and 8 for each that there is room for on its way. Backward sends
// the norm's output again.
//
// Attention by way of latents has no heads of its own here but in native_latent_attention.h, which says what
// it keeps.
//
// Outputs of the two norms and SwiGLU's product are never kept: the kernels of their backward read all that
// they are made of, and write them where their gradients were, for the gradients of the matrices after them.
//
// CUDA's attention kernels add a few bytes of random state. What runs again runs with the same operators on
// the same bits, so gradients are the same bits for all three (on CUDA as far as attention's backward itself
// is: native_attention.h).
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "fsdp/model/native/native_attention.h"
#include "fsdp/model/native/native_dispatch.h"
#include "fsdp/model/native/native_experts.h"
#include "fsdp/model/native/native_fp8_experts.h"
#include "fsdp/model/native/native_fp8_ops.h"
#include "fsdp/model/native/native_heads.h"
#include "fsdp/model/native/native_latent_attention.h"
#include "fsdp/model/native/native_linear.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/native_unit.h"
#include "fsdp/model/native/token_parts.h"

namespace fsdpd {

class NativeBlock : public NativeUnit {
 public:
  NativeBlock(UnitFacts facts, at::ScalarType compute, const LlamaConfig& config, Rotary rotary);

  UnitOutput Forward(int slot, const UnitInput& input, Keep keep) override;
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  // Puts off every product with a matrix's gradient but experts' and their router's; those of norms come with
  // their input's.
  void BackwardWeights(int slot, const ParamGrads& grads) override;
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override;
  void Forget() override {
    saved_.Clear();
    later_.Clear();
  }

 private:
  // The parameters' numbers, -1 for those that the configuration lacks.
  struct Params {
    int attention_norm, wq, bq, wk, bk, wv, bv, q_norm, k_norm, wo, ffn_norm, router, router_bias, w1, w3, w2,
        shared_w1, shared_w3, shared_w2, wq_a, q_a_norm, wq_b, wkv_a, kv_a_norm, wkv_b;
  };

  // What forward computes, in order. What is undefined was dropped, and backward computes it again.
  struct SavedActivations {
    at::Tensor x;                             // [micro_batch x sequence x hidden], as UnitInput has it.
    std::array<int64_t, 2> micro_batch = {};  // Samples, and tokens of each that attention is about.
    at::Tensor positions;
    Documents documents;
    at::Tensor targets;         // Of routers' losses: which of a sample's tokens count.
    at::Tensor attention_rstd;  // Of the norm before attention: [tokens x 1] fp32.
    at::Tensor qkv;  // Side by side in a row: v, and q and k after rotation; with qk_norm before their norms.
                     // With latents LatentRows'.
    at::Tensor samples;  // With latents, LatentRows', where ranks share samples; until attention is done.
    at::Tensor q;        // [micro_batch x sequence x heads x head_size]: normed and rotated, with qk_norm.
    at::Tensor k;        // With latents LatentHeads' q and kv, as the next two.
    at::Tensor q_rstd;   // [tokens * heads x 1] fp32; undefined without qk_norm.
    at::Tensor k_rstd;
    AttentionOutput attended;
    at::Tensor middle;  // After attention's residual: [tokens x hidden].
    at::Tensor ffn_rstd;
    // With experts.
    Routing routing;
    TokenDispatch dispatch;
    at::Tensor shared_gate_up;  // Of the layer beside them, [tokens x 2 of its width].
    at::Tensor gate_up;         // [tokens, or rows, x 2 intermediate]
  };

  // A product whose result is the gradient of matrices that read the same input.
  struct MatrixGrads {
    at::Tensor grad_out;
    at::Tensor x;
    std::vector<int> matrices;  // Numbers of parameters, as `biases`.
    std::vector<int> biases;
    Fp8 grad_out_columns = {};  // In place of grad_out or x, what was rounded when it was made.
    Fp8 x_columns = {};
    at::Tensor x_largest = {};  // RmsNormBackward's.
  };

  // One call of Backward.
  struct BackwardCall {
    const ParamGrads& grads;
    WeightGrads when;
    std::vector<MatrixGrads> later;
    std::vector<MatrixGrads> beside = {};  // Put off until something travels.

    at::Tensor Into(int index) const { return index < 0 ? at::Tensor() : grads.into[index]; }
  };

  static Params Find(const NativeBlock& block);
  // The matrices that read the norm before attention, and their biases.
  std::vector<int> Qkv() const;
  std::vector<int> QkvBiases() const;
  std::vector<int> GateUp() const { return {p_.w1, p_.w3}; }
  std::vector<int> SharedGateUp() const { return {p_.shared_w1, p_.shared_w3}; }
  // What this rank reads of a parameter, or writes of its gradient: of keys and values whose matrices all
  // ranks that share matrices have whole, its head's rows.
  at::Tensor OwnRows(int index, const at::Tensor& of) const;
  bool HasOthersRows(int index) const;
  std::vector<at::Tensor> ParamsOf(const std::vector<int>& indices) const;

  // What these matrices multiply, which are all in FP8 or none is.
  Weights WeightsOf(const std::vector<int>& matrices) const;
  std::vector<Fp8> Fp8Of(const std::vector<int>& matrices) const;
  at::Tensor ScalesOf(const std::vector<int>& matrices) const;  // Of their rows, one after the other.
  bool InFp8(const std::vector<int>& matrices) const { return facts().params[matrices.front()].fp8; }
  // Whether what these read is rounded to FP8 where it is made: nothing of it goes to other ranks.
  bool ReadsRounded(const std::vector<int>& matrices) const;

  bool HasExperts() const { return p_.router >= 0; }
  bool HasShared() const { return p_.shared_w1 >= 0; }  // A layer beside them.
  bool HasLatents() const { return p_.wkv_b >= 0; }
  LatentParams LatentParamsOf() const {
    return {param(p_.q_a_norm), param(p_.wq_b), param(p_.kv_a_norm), param(p_.wkv_b)};
  }
  static LatentRows LatentRowsOf(const SavedActivations& saved) {
    return {saved.qkv, saved.micro_batch, saved.positions, saved.samples};
  }
  static LatentHeads LatentHeadsOf(const SavedActivations& saved) {
    return {saved.q, saved.k, saved.q_rstd, saved.k_rstd};
  }

  // The matrices' outputs for all tokens, from the norm of x, this rank's tokens.
  at::Tensor NormedProduct(const at::Tensor& x, int norm, at::Tensor* rstd, const std::vector<int>& matrices,
                           const std::vector<int>& biases) const;
  // residual + x matrix^T, of all ranks' slices of both.
  at::Tensor AddProduct(const at::Tensor& residual, const at::Tensor& x, int matrix) const;

  // The parts of qkv's rows, by head.
  AttentionInput Heads(const at::Tensor& qkv, at::IntArrayRef micro_batch) const;
  AttentionInput AttentionInputOf(const SavedActivations& saved) const;

  // Of this rank's tokens, to whole samples.
  AttentionOutput Attend(const SavedActivations& saved) const;
  bool SharesSamples() const { return context().SizeOf(Group::kContext) > 1; }
  AttentionInput AttendBackward(at::Tensor grad, const SavedActivations& saved) const;

  // Tokens' rows for products with these matrices' gradients.
  ExpertRows RowsFor(const at::Tensor& tokens, const Routing& routing, const TokenDispatch& dispatch,
                     const std::vector<int>& matrices) const;
  // native_experts.h's three products, in FP8 where these matrices are; forward of tokens' rows, or of rows.
  at::Tensor ExpertsOfTokens(const at::Tensor& tokens, const SavedActivations& saved,
                             const std::vector<int>& matrices) const;
  at::Tensor ExpertsOfRows(const at::Tensor& rows, const at::Tensor& ends, int matrix) const;
  std::vector<at::Tensor> ExpertsInputGrads(const ExpertRows& grad_out, const at::Tensor& ends,
                                            const std::vector<int>& matrices) const;
  void ExpertsMatrixGrads(const ExpertRows& grad_out, const ExpertRows& rows, const at::Tensor& ends,
                          const std::vector<int>& matrices, const BackwardCall& call) const;

  // Each fills in what it is named after from what comes before it in `kept`.
  void FillQk(SavedActivations* saved) const;
  void FillLatentHeads(SavedActivations* saved) const;
  void FillMiddle(SavedActivations* saved) const;  // Attention whole.
  void FillGateUp(SavedActivations* saved) const;
  at::Tensor FfnOutput(const SavedActivations& saved) const;  // With the residual.

  // Drop what `keep` computes again.
  void DropAttention(Keep keep, SavedActivations* saved) const;
  void DropFfn(Keep keep, SavedActivations* saved) const;

  // From the gradient of the output to that of `middle`, and from that to x's. Free in `kept` what they used.
  at::Tensor FfnBackward(const at::Tensor& grad, BackwardCall* call, SavedActivations* saved) const;
  at::Tensor Fp8FfnBackward(const at::Tensor& grad, BackwardCall* call, SavedActivations* saved) const;
  at::Tensor ExpertsFfnBackward(const at::Tensor& grad, BackwardCall* call, SavedActivations* saved) const;
  // Of the layer beside experts: its output, and from that's gradient to that of gate and up.
  at::Tensor SharedOutput(const at::Tensor& gate_up) const;
  at::Tensor SharedBackward(const at::Tensor& grad_sum, const BackwardCall& call,
                            SavedActivations* saved) const;
  at::Tensor AttentionHalfBackward(const at::Tensor& grad, BackwardCall* call, SavedActivations* saved) const;
  // A norm, and the matrices that read its output.
  struct NormedParams {
    int norm;
    std::vector<int> matrices;
    std::vector<int> biases;
  };
  // The gradient of the matrices' outputs: as it is, or in FP8 already.
  struct OutputGrads {
    at::Tensor plain;
    Fp8 rows = {};  // Multiplied with the weights' scales.
    Fp8 columns = {};
  };
  // From that to the gradient of the norm's input x, which also went past both: `grad` is what comes back
  // that way.
  at::Tensor NormedBackward(const at::Tensor& grad, OutputGrads grad_outputs, const at::Tensor& x,
                            const at::Tensor& rstd, const NormedParams& params, BackwardCall* call) const;
  // The gradient of x matrix^T's x, all tokens', of which `grad_sum` has this rank's and then has everyone's.
  at::Tensor ProductBackward(const at::Tensor& grad_sum, int matrix) const;
  HeadNorms HeadNormsOf() const { return {param(p_.q_norm), param(p_.k_norm), config_.norm_epsilon}; }

  // From the gradients of q, k and v to those of qkv's rows.
  at::Tensor QkvBackward(AttentionInput grad, const BackwardCall& call, SavedActivations* saved) const;
  at::Tensor LatentBackward(AttentionInput grad, BackwardCall* call, SavedActivations* saved) const;

  void Add(MatrixGrads product, BackwardCall* call) const;        // Now or later.
  void AddBeside(MatrixGrads product, BackwardCall* call) const;  // When something travels, or later.
  void Compute(const MatrixGrads& product, const ParamGrads& grads) const;

  const LlamaConfig config_;  // With the rank's own heads.
  const Rotary rotary_;
  const Params p_;
  const LatentAttention latent_;  // Of a configuration that has it.
  SavedSlots<SavedActivations> saved_;
  SavedSlots<std::vector<MatrixGrads>> later_;
};

}  // namespace fsdpd
