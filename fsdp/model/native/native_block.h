// Decoder block of the Llama family: x + attention(norm(x)), followed by the same with SwiGLU (or experts).
//
// Saved activations, for T tokens, widths hidden H, query Q, key K, intermediate I, c bytes per element of
// the compute type, h query heads and g key heads (fsdp/plan/model/model_facts.cc, the memory plan, computes
// the same):
//
//   kAll        T c (2 H + 2 Q + 2 K + 2 I) + 4 T (2 + h)    [qk_norm: + T c (Q + K) + 4 T (h + g)]
//               x, q, k, v, attention output, residual sum, gate, up; 1/rms of two norms, log-sum-exp of
//               attention. With qk_norm also q and k before their norms.
//   kSelective  T c (2 H + 2 Q + 2 K) + 4 T (1 + h)
//               without gate and up, whose matmul is recomputed; with qk_norm, q and k are saved only before
//               their norms.
//   kInput      T c H
//               x. Everything is recomputed, except for the last matmul, which only the next unit needs.
//
// Tensor parallelism: each rank has a shard of the heads (whole heads) and of the intermediate width. Between
// the sharded matrices each rank has a part of the tokens (sequence parallelism, token_parts.h). In the
// formulas, x, the residual sum and 1/rms are then of that part of the tokens, and Q, K, I, h and g are of
// the shard.
//
// Experts: the rows of the FFN are choices rather than tokens, per_token of them for each token
// (native_router.h). In addition to gate and up, the block saves 4 T experts + 20 T per_token bytes of
// routing state, for as long as those. The output of SwiGLU is multiplied by the routing weight before the
// last matrix. With expert parallelism (native_dispatch.h) gate and up cover this rank's expert capacity. The
// routing state is 4 T experts + 8 T per_token bytes, plus 8 bytes per row of capacity, plus 4 bytes per
// choice of all ranks; or, with all-to-all dispatch, 4 bytes per own choice and 8 per row of send capacity.
// Backward dispatches the norm's output again.
//
// Multi-head latent attention is implemented in native_latent_attention.h, which states what it saves.
//
// Outputs of the two norms and of SwiGLU are never saved: their backward kernels read everything
// needed to recompute them, and write them in place of their gradients, where the weight-gradient matmuls
// read them.
//
// CUDA's attention kernels add a few bytes of random state. Recomputation runs the same operators on the same
// bits, so gradients are bitwise equal for all three modes (on CUDA to the extent that attention's backward
// is deterministic: native_attention.h).
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "fsdp/model/native/native_attention.h"
#include "fsdp/model/native/native_dispatch.h"
#include "fsdp/model/native/native_heads.h"
#include "fsdp/model/native/native_latent_attention.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/native_products.h"

namespace fsdpd {

class NativeBlock : public NativeProducts {
 public:
  NativeBlock(UnitFacts facts, at::ScalarType compute, const LlamaConfig& config, Rotary rotary);

  UnitOutput Forward(int slot, const UnitInput& input, ActivationSaving saving) override;
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  // Defers all products for matrix gradients except those of experts and their router. The gradients of norms
  // are computed together with the gradient of their input.
  void BackwardWeights(int slot, const ParamGrads& grads) override;
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override;
  void Forget() override {
    saved_.Clear();
    later_.Clear();
  }

 private:
  // Indices of the parameters, -1 for those that the configuration does not have.
  struct Params {
    int attention_norm, wq, bq, wk, bk, wv, bv, q_norm, k_norm, wo, ffn_norm, router, router_bias, w1, w3, w2,
        shared_w1, shared_w3, shared_w2, wq_a, q_a_norm, wq_b, wkv_a, kv_a_norm, wkv_b;
  };

  // What forward computes, in order. Undefined tensors were dropped, and backward recomputes them.
  struct SavedActivations {
    at::Tensor x;                             // [micro_batch x sequence x hidden], as UnitInput has it.
    std::array<int64_t, 2> micro_batch = {};  // Samples, and tokens per sample that attention covers.
    at::Tensor positions;
    Documents documents;
    at::Tensor targets;         // For router losses: which tokens of a sample count.
    at::Tensor attention_rstd;  // 1/rms of the norm before attention: [tokens x 1] fp32.
    // Packed rows: v, and q and k after rotation (with qk_norm: before norms). With latents, LatentRows.
    at::Tensor qkv;
    at::Tensor samples;  // LatentRows::samples: latents with context parallelism; until attention is done.
    at::Tensor q;        // [micro_batch x sequence x heads x head_size], normed and rotated; with qk_norm.
    at::Tensor k;        // With latents, q and kv of LatentHeads; likewise the next two.
    at::Tensor q_rstd;   // [tokens * heads x 1] fp32; undefined without qk_norm.
    at::Tensor k_rstd;
    AttentionOutput attended;
    at::Tensor middle;  // After the attention residual: [tokens x hidden].
    at::Tensor ffn_rstd;
    // Only with experts.
    Routing routing;
    TokenDispatch dispatch;
    at::Tensor shared_gate_up;  // Of the shared expert, [tokens x 2 of its width].
    at::Tensor gate_up;         // [tokens (with experts: rows) x 2 intermediate], see SwigluAddsWide.
    // Of the adapters (LoraAdapters). Every recompute mode saves those of w2, because backward does not
    // repeat the products of w2.
    at::Tensor qkv_low;
    at::Tensor wo_low;
    at::Tensor gate_up_low;
    at::Tensor w2_low;
    at::Tensor shared_gate_up_low;
    at::Tensor shared_w2_low;
  };

  static Params Find(const NativeBlock& block);
  // The matrices that read the norm before attention (Q, K, V), and their biases.
  std::vector<int> Qkv() const;
  std::vector<int> QkvBiases() const;
  NormedParams AttentionInputs() const { return {p_.attention_norm, Qkv(), QkvBiases()}; }
  std::vector<int> GateUp() const { return {p_.w1, p_.w3}; }
  NormedParams FfnInputs() const {
    return {p_.ffn_norm, GateUp(), /*biases=*/{}, SwigluAddsWide(GateUp(), p_.w2)};
  }
  std::vector<int> SharedGateUp() const { return {p_.shared_w1, p_.shared_w3}; }
  bool HasExperts() const { return p_.router >= 0; }
  bool HasShared() const { return p_.shared_w1 >= 0; }  // A shared expert.
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

  // Views of q, k and v in packed rows, by head.
  AttentionInput Heads(const at::Tensor& qkv, at::IntArrayRef micro_batch) const;
  AttentionInput AttentionInputOf(const SavedActivations& saved) const;

  // Attention of this rank's tokens to whole samples.
  AttentionOutput Attend(const SavedActivations& saved) const;
  bool IsContextParallel() const { return context().SizeOf(Group::kContext) > 1; }
  AttentionInput AttendBackward(at::Tensor grad, const SavedActivations& saved) const;

  // Each computes the field in its name from the fields before it in `saved`.
  void FillQk(SavedActivations* saved) const;
  void FillLatentHeads(SavedActivations* saved) const;
  void FillMiddle(SavedActivations* saved) const;  // The whole attention half.
  void FillGateUp(SavedActivations* saved) const;
  at::Tensor FfnOutput(SavedActivations* saved) const;  // Including the residual.

  // Drop the fields that `saving` recomputes.
  void DropAttention(ActivationSaving saving, SavedActivations* saved) const;
  void DropFfn(ActivationSaving saving, SavedActivations* saved) const;

  // Backward of the FFN half (output to `middle`) and of the attention half (`middle` to x). They free the
  // fields of `saved` after the last use.
  at::Tensor FfnBackward(const at::Tensor& grad, BackwardCall* call, SavedActivations* saved) const;
  at::Tensor Fp8FfnBackward(const at::Tensor& grad, BackwardCall* call, SavedActivations* saved) const;
  at::Tensor ExpertsFfnBackward(const at::Tensor& grad, BackwardCall* call, SavedActivations* saved) const;
  // The shared expert: its output, and the backward from its output to gate and up.
  at::Tensor SharedOutput(SavedActivations* saved) const;
  at::Tensor SharedBackward(const at::Tensor& grad_sum, const BackwardCall& call,
                            SavedActivations* saved) const;
  at::Tensor AttentionHalfBackward(const at::Tensor& grad, BackwardCall* call, SavedActivations* saved) const;
  HeadNorms HeadNormsOf() const { return {param(p_.q_norm), param(p_.k_norm), config().norm_epsilon}; }

  // From the gradients of q, k and v to the gradient of the packed rows.
  at::Tensor QkvBackward(AttentionInput grad, const BackwardCall& call, SavedActivations* saved) const;
  at::Tensor LatentBackward(AttentionInput grad, BackwardCall* call, SavedActivations* saved) const;

  const Rotary rotary_;
  const Params p_;
  const LatentAttention latent_;  // Used only if the configuration has it.
  SavedSlots<SavedActivations> saved_;
  SavedSlots<std::vector<MatrixGrads>> later_;
};

}  // namespace fsdpd
