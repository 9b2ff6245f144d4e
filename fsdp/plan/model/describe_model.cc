#include "fsdp/plan/model/describe_model.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/check.h"
#include "fsdp/plan/model/attention_workspace.h"
#include "fsdp/plan/model/described_units.h"
#include "fsdp/plan/model/fp8_facts.h"
#include "fsdp/plan/model/latent_facts.h"
#include "fsdp/plan/model/llama_exchanges.h"
#include "fsdp/plan/model/llama_params.h"
#include "fsdp/plan/model/lora_facts.h"
#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {
namespace {

// One rank's portion of a micro-batch.
struct Share {
  int64_t micro_batch;
  int64_t sequence;
  int64_t context;
  int64_t tensor;
  int64_t expert;
  DType compute;
  bool host;
  bool documents = false;
  bool computed_grads = false;     // Gradient buffers use the compute type.
  bool ordered_attention = false;  // As in Shape.
  DType grads = DType::kFp32;      // Type of gradient buffers.
  std::function<bool(const std::string&)> is_frozen = [](const std::string&) {
    return false;
  };  // By full name.

  int64_t tokens() const { return micro_batch * sequence / context; }
};

constexpr int64_t kStatisticBytes = 4;  // fp32, one per token (a norm's 1/rms) or per row (a log-sum-exp).
constexpr int64_t kFp32Bytes = 4;
constexpr int64_t kIndexBytes = 8;
constexpr int64_t kPlaceBytes = 4;

bool IsOfExperts(const ParamFacts& param) { return param.shape.size() == 3; }

// Matrices of all experts on the rank that have gradients: up to three (gate, up and down).
int64_t TrainedOfExperts(const Params& params) {
  return std::count_if(params.begin(), params.end(),
                       [](const ParamFacts& param) { return IsOfExperts(param) && param.trainable; });
}

// With experts: of one expert.
int64_t LargestMatrix(const Params& params) {
  int64_t largest = 0;
  for (const ParamFacts& param : params) {
    const int64_t matrices = IsOfExperts(param) ? param.shape[0] : 1;
    largest = std::max(largest, param.elements() / matrices);
  }
  return largest;
}

// ---- Saved activations and workspace. Each function mirrors one unit of fsdp/model; change both together.

// Saved by the router and dispatch: router logits and weights, the chosen experts, the row of each choice and
// the choice of each row (native_router.h).
int64_t RoutingSaved(const Shape& s) {
  if (s.experts == 0) return 0;
  // All-gather dispatch saves the rows of all ranks' choices; all-to-all saves the positions of sent and
  // received rows.
  const int64_t choices = s.gathers_tokens() ? s.expert * s.rows() : s.rows() + 2 * s.dispatched_rows();
  return s.tokens * s.experts * kFp32Bytes + s.rows() * kIndexBytes + choices * kPlaceBytes +
         s.capacity_rows() * (kPlaceBytes + kFp32Bytes);
}

// Attention with key/value heads (not MLA).
AttentionSaved HeadsSaved(const Shape& s, bool qk_norm) {
  AttentionSaved kept;
  kept.selective = s.query + s.key  // Rotated q and k; with qk_norm: before their norms.
                   + s.key          // v.
                   + s.query;       // Attention's output.
  kept.all = kept.selective;
  kept.selective_statistics = kept.all_statistics = s.heads;  // Attention's log-sum-exp.
  if (!qk_norm) return kept;
  kept.all += s.query + s.key;  // Both before and after the norms.
  kept.all_statistics += s.heads + s.heads * s.key / s.query;
  return kept;
}

// Native Llama layer (native_block.h): saved tensors, each [tokens x width] in compute precision.
SavedBytes LlamaBlockSaved(const Shape& s, bool qk_norm) {
  const AttentionSaved attention = s.latent ? LatentSaved(s) : HeadsSaved(s, qk_norm);
  const int64_t between = s.OwnBytes(s.hidden         // Layer input: attention norm, residual.
                                     + s.hidden);     // After the first residual: input of the FFN norm.
  const int64_t ffn = s.RowBytes(2 * s.intermediate)  // Gate and up.
                      + s.Bytes(2 * s.shared)         // The same of the shared expert.
                      + RoutingSaved(s);
  const auto statistics = [&](int64_t of_tokens, int64_t norms) {  // Norms save 1/rms.
    return (s.tokens * of_tokens + s.own_tokens() * norms) * kStatisticBytes;
  };
  return {between + s.Bytes(attention.all) + ffn + statistics(attention.all_statistics, 2),
          between + s.Bytes(attention.selective) + statistics(attention.selective_statistics, 1),
          s.HiddenBytes()};
}

// Elements that deferred weight gradients read: output gradients and inputs; outputs of norms are recomputed.
// Gradients of experts are not deferred.
int64_t LlamaBlockDeferredElements(const Shape& s) {
  const int64_t attention = s.latent ? LatentDeferredElements(s) : 2 * s.hidden + 2 * s.query + 2 * s.key;
  return s.Bytes(s.experts > 0 ? attention : attention + 2 * s.hidden + 3 * s.intermediate);
}

// One matrix (gate, up or down) of all experts on the rank.
int64_t ExpertsMatrixBytes(const Shape& s) {
  return s.own_experts() * s.intermediate * s.hidden * s.compute_bytes;
}

// Peak of the experts' backward. On CUDA the larger of two states. (1) Per row: the incoming gradient and the
// gradient of SwiGLU's output; plus one weight gradient in the compute type if the buffer uses another type
// and a matrix is trained, and with all-gather dispatch all ranks' gradients. (2) The two parts of the input
// gradient and their sum; with all-gather dispatch also the send and receive buffers of the sum.
int64_t ExpertsWorkspace(const Shape& s, int64_t cast, bool trained) {
  const int64_t received = s.expert > 1 && !s.gathers_tokens() ? s.hidden : 0;
  // CPU: also two intermediate results of SwiGLU, and the gradient before it is weighted.
  if (s.host) {
    return s.RowBytes(4 * s.intermediate + s.hidden + received) + std::max(s.HiddenBytes(), cast) +
           s.GatheredTokenBytes();
  }
  const int64_t matrix = s.computed_grads || !trained ? 0 : ExpertsMatrixBytes(s);
  return std::max(s.RowBytes(s.intermediate + s.hidden + received) + matrix + s.GatheredTokenBytes(),
                  s.RowBytes(2 * s.hidden + received) + s.tokens * s.hidden * kFp32Bytes +
                      2 * s.GatheredTokenBytes()) +
         s.HiddenBytes();
}

// Backward peaks at SwiGLU: the incoming gradient and that of SwiGLU's output; LibTorch operators (CPU) add
// two intermediate results.
int64_t LlamaBlockWorkspace(const Shape& s, const Params& params) {
  const int64_t cast = s.HostCasts() ? LargestMatrix(params) * s.compute_bytes : 0;  // One weight gradient.
  int64_t ffn = s.Bytes((s.host ? 3 : 1) * s.intermediate) + std::max(s.HiddenBytes(), cast);
  if (s.experts > 0) ffn = ExpertsWorkspace(s, cast, TrainedOfExperts(params) > 0);
  // Sequence parallel: the gathered incoming gradient, and next to SwiGLU's output (whose weight gradient
  // overlaps communication) each rank's part of a reduce-scatter, its send buffer, the result and the
  // outgoing gradient; on CPU also the sum in fp32.
  if (s.tensor > 1) {
    const int64_t sums = 2 * s.Bytes(s.hidden) + 2 * s.HiddenBytes() +
                         (s.host ? 2 * s.own_tokens() * s.hidden * kFp32Bytes : 0);
    ffn = std::max(ffn + s.AllHiddenBytes(), s.AllHiddenBytes() + s.RowBytes(s.intermediate) + cast + sums);
  }
  // Gate, up and the residual sum are freed before attention's backward.
  const int64_t gone = s.RowBytes(2 * s.intermediate) + s.HiddenBytes();
  const auto beside_ffn = [&](int64_t attention) {
    return std::max(ffn, attention + s.AllHiddenBytes() - gone);
  };
  if (s.latent) return beside_ffn(LatentWorkspace(s));
  if (s.documents && !s.host) return beside_ffn(DocumentsAttentionBytes(s));
  if (s.context == 1) return s.ordered_attention ? beside_ffn(OrderedAttentionBytes(s)) : ffn;
  // Context-parallel attention (context_attention.h): all keys and values; the gradients of those that one
  // chunk of queries attends to, their send buffer, and the rank's own; and the gradients of attention's
  // output and of the queries.
  const int64_t samples = s.tokens * s.context / s.sequence;
  const int64_t sums =
      s.ordered_attention ? QuerySumBytes(s, samples, s.tokens / SequencePartition::kChunksPerRank) : 0;
  return beside_ffn((3 * s.AllKeys() + s.AllKeys() / s.context) * s.compute_bytes + s.Bytes(3 * s.query) +
                    sums);
}

// GPT-2's layer uses autograd: tensors that LibTorch operators save, in forward order.
SavedBytes Gpt2BlockSaved(const Shape& s) {
  const int64_t width = s.hidden               // Input of the attention norm.
                        + s.hidden             // Normed input of wqkv.
                        + 3 * s.hidden         // q, k and v: views of one tensor.
                        + s.hidden             // Attention's output, for its backward and for wo.
                        + s.hidden             // After the first residual: input of the FFN norm.
                        + s.hidden             // Normed input of w1.
                        + 2 * s.intermediate;  // w1's output, and GELU of it, for w2.
  const int64_t statistics = 4 + s.heads;      // Mean and 1/stddev of two norms, and attention's log-sum-exp.
  const int64_t bytes = s.Bytes(width) + s.tokens * statistics * kStatisticBytes;
  return {bytes, bytes, s.HiddenBytes()};  // Autograd decides what is saved: selective equals none.
}

// Peaks at w2: the incoming gradient, GELU's gradient, and the weight gradient as autograd returns it.
int64_t Gpt2BlockWorkspace(const Shape& s) {
  const int64_t cast = s.HostCasts() ? s.tokens * s.hidden * 4 : 0;
  const int64_t ffn = s.Bytes(s.intermediate + s.hidden) + s.intermediate * s.hidden * s.compute_bytes + cast;
  return s.ordered_attention ? std::max(ffn, OrderedAttentionBytes(s)) : ffn;
}

// Token ids, for any recompute kind.
SavedBytes EmbeddingSaved(const Shape& s) {
  const int64_t bytes = s.tokens * 8;
  return {bytes, bytes, bytes};
}

// Held within the head's ForwardBackward: input, normed input, targets, and `statistics` fp32 values per
// token (of the norm, and with autograd the log-sum-exp).
SavedBytes HeadSaved(const Shape& s, int64_t statistics) {
  const int64_t bytes = s.HiddenBytes() + s.Bytes(s.hidden) + s.tokens * (8 + statistics * kStatisticBytes);
  return {bytes, bytes, bytes};
}

// One chunk's logits (on CPU also in fp32) and the gradient of the normed input; or the norm's backward, if
// larger.
int64_t LlamaHeadWorkspace(const Shape& s) {
  const int64_t logits = std::min(s.tokens, kLossChunkTokens) * s.vocab;
  const int64_t loss = logits * (s.compute_bytes + (s.HostCasts() ? 8 : s.host ? 4 : 0)) + s.Bytes(s.hidden);
  const int64_t norm = s.host ? s.own_tokens() * s.hidden * (s.HostCasts() ? 16 : 12) : s.HiddenBytes();
  return std::max(loss, norm);
}

// The autograd head: logits in fp32, plus a copy in compute precision unless that is fp32. The weight
// gradient is as autograd returns it; with several chunks, the fp32 sum of earlier chunks is added.
int64_t Gpt2HeadWorkspace(const Shape& s) {
  const int64_t logits = std::min(s.tokens, kLossChunkTokens) * s.vocab;
  const int64_t tied_replica = s.compute_bytes < 4 ? s.compute_bytes + (s.HostCasts() ? 4 : 0) : 0;
  const int64_t sum = s.tokens > kLossChunkTokens ? 4 : 0;
  return logits * (4 + tied_replica) + s.HiddenBytes() + s.vocab * s.hidden * (s.compute_bytes + sum);
}

// Embedding backward: the incoming gradient, which the native unit scatters row by row; on CPU with 16-bit
// gradients, into an fp32 sum of the whole matrix.
int64_t LlamaEmbeddingWorkspace(const Shape& s, bool trained) {
  const int64_t came = s.HiddenBytes() + s.AllHiddenBytes();
  if (!s.HostCasts() || !trained) return came;
  const int64_t cast = s.tokens * s.hidden * 4, sum = s.computed_grads ? s.vocab * s.hidden * 4 : 0;
  return came + cast + sum;
}

// Autograd creates each whole weight gradient, one at a time.
int64_t Gpt2EmbeddingWorkspace(const Shape& s, int64_t positions) {
  const int64_t of_positions = (positions + s.sequence) * s.hidden * s.compute_bytes;
  const int64_t of_vocab = s.vocab * s.hidden * (s.HostCasts() ? 4 : s.compute_bytes);
  return s.HiddenBytes() + std::max(of_positions, of_vocab);
}

// ---- Memory traffic of CUDA kernels (fsdp/kernels) other than matrix products and attention. Operands and
// result of a product belong to the product; an addend that it reads is counted here.

// Tokens are copied into rows by expert, and rows summed into tokens.
int64_t MovedRows(const Shape& s) { return s.experts > 0 ? s.MovedRowBytes(4 * s.hidden) : 0; }

// The weight gradients are computed in the compute type, then copied or added to the bucket if that has
// another type.
int64_t MovedGradients(const Shape& s, const Params& params) {
  if (s.experts == 0 || s.computed_grads) return 0;
  return TrainedOfExperts(params) *
         (ExpertsMatrixBytes(s) + s.own_experts() * s.intermediate * s.hidden * kFp32Bytes);
}

void CountLlamaBlockBytes(const Shape& s, bool qk_norm, UnitFacts* unit) {
  const int64_t qk = s.latent ? 0 : s.query + s.key;  // One fused pass, including their norms.
  const int64_t moved = MovedRows(s);
  unit->forward_bytes = s.Bytes(2 * qk)                        // Rotary embedding: read, write.
                        + s.MovedRowBytes(3 * s.intermediate)  // SwiGLU: two reads, one write.
                        + s.Bytes(3 * s.shared)                // SwiGLU of the shared expert.
                        + s.OwnBytes(2 * 2 * s.hidden          // Two norms: read, write.
                                     + 2 * s.hidden)           // Residuals, added by a product.
                        + moved;
  unit->backward_bytes = s.Bytes((qk_norm ? 3 : 2) * qk)  // Rotary embedding; norms also read their input.
                         + s.MovedRowBytes(6 * s.intermediate)  // SwiGLU: three reads, three writes.
                         + s.Bytes(6 * s.shared)                // SwiGLU of the shared expert.
                         // Norms: three reads (gradient, input, residual), two writes.
                         + s.OwnBytes(2 * 5 * s.hidden + 3 * s.hidden)  // Addends of gradient products.
                         + 2 * moved + MovedGradients(s, unit->params);
}

// Forward: norms, four products, rotary embedding, attention, SwiGLU. Backward: two products for each,
// attention in four kernels, each norm in two. Experts add routing, gather and weighting.
void CountLlamaBlockKernels(const Shape& s, UnitFacts* unit) {
  unit->forward_kernels = 9 + (s.experts > 0 ? 20 : 0);
  unit->backward_kernels = 19 + (s.experts > 0 ? 25 : 0);
}

// The norm, and the loss in chunks.
void CountLlamaHead(const Shape& s, bool trained, UnitFacts* unit) {
  const int64_t chunks = LossChunks(s.tokens);
  unit->forward_bytes = 2 * s.HiddenBytes();
  unit->backward_bytes = 3 * s.HiddenBytes();
  AddLossBytes(s.tokens, s.tokens * s.vocab * s.compute_bytes, trained ? s.vocab * s.hidden * kFp32Bytes : 0,
               unit);
  // Forward: the norm, and per chunk the product and the loss. Backward: per chunk the loss and two products,
  // and the norm.
  unit->forward_kernels = static_cast<int>(2 + 4 * chunks);
  unit->backward_kernels = static_cast<int>(2 + 3 * chunks);
}

void CountGpt2HeadBytes(const Shape& s, UnitFacts* unit) {
  // The norm, and per logit: read, write in fp32, read.
  unit->forward_bytes = 2 * s.HiddenBytes() + s.tokens * s.vocab * (s.compute_bytes + 2 * kFp32Bytes);
  unit->backward_bytes = 2 * unit->forward_bytes;
}

// ---- Units.

UnitFacts Embedding(const Shape& s, Params params, int64_t workspace_bytes) {
  UnitFacts unit{"embedding", UnitKind::kEmbedding, std::move(params)};
  unit.backward_reads = false;
  unit.saved_bytes = EmbeddingSaved(s);
  unit.output_bytes = s.HiddenBytes();
  unit.workspace_bytes = workspace_bytes;
  unit.forward_bytes = 2 * unit.output_bytes;
  unit.backward_bytes = 2 * unit.forward_bytes;
  return unit;
}

UnitFacts Block(int64_t index, const Shape& s, Params params) {
  UnitFacts unit{absl::StrCat("layer.", index), UnitKind::kBlock, std::move(params)};
  double matrices = 0;
  for (const ParamFacts& param : unit.params) {
    if (param.shape.size() == 2) matrices += static_cast<double>(param.elements());
  }
  const auto tokens = static_cast<double>(s.tokens);
  // Two [sequence x sequence] products per head, 2 FLOPs per multiply-add, halved for causality.
  unit.attention_flops = tokens * static_cast<double>(s.sequence * s.pair_width());
  unit.forward_flops = 2 * tokens * matrices + unit.attention_flops;
  unit.output_bytes = s.HiddenBytes();
  return unit;
}

UnitFacts Head(const Shape& s, bool tied, Params params, int64_t statistics, int64_t workspace_bytes) {
  if (!tied) Add(&params, "output", {s.vocab, s.hidden}, s.Rows());
  UnitFacts unit{"head", UnitKind::kHead, std::move(params)};
  if (tied) unit.borrows = 0;
  unit.saved_bytes = HeadSaved(s, statistics);
  unit.workspace_bytes = workspace_bytes;
  unit.forward_flops = 2 * static_cast<double>(s.tokens) * static_cast<double>(s.vocab * s.hidden);
  return unit;
}

// ---- Model families.

// FLOPs of attention's projections. With replicated key/value projections, a rank computes one head.
double AttentionProducts(const Shape& s, const Params& params) {
  const auto flops = [&](int64_t elements) {
    return 2.0 * static_cast<double>(s.tokens) * static_cast<double>(elements);
  };
  if (!s.latent) return flops(s.hidden * (2 * s.query + 2 * s.key));
  int64_t elements = 0;
  for (const ParamFacts& param : params) {
    const bool of_attention = param.name.compare(0, 10, "attention.") == 0 && param.shape.size() == 2;
    if (of_attention) elements += param.elements();
  }
  return flops(elements);
}

UnitFacts LlamaBlock(const LlamaConfig& model, int64_t layer, const Shape& s, const Share& share) {
  UnitFacts unit = Block(layer, s, LlamaBlockParams(model, s));
  for (ParamFacts& param : unit.params) param.trainable &= !share.is_frozen(FullName(unit, param));
  const Params& params = unit.params;
  const auto rows = static_cast<double>(s.rows()), hidden = static_cast<double>(s.hidden);
  if (s.experts > 0) unit.forward_flops += 2 * rows * hidden * static_cast<double>(3 * s.intermediate);
  if (!ShardsKeys(model, s.tensor)) {  // Replicated projections: computes one head.
    const int64_t others = 2 * (model.kv_heads - 1) * model.head_size;
    unit.forward_flops -= 2 * static_cast<double>(s.tokens) * static_cast<double>(others * s.hidden);
  }
  unit.saved_bytes = LlamaBlockSaved(s, model.qk_norm);
  unit.workspace_bytes = LlamaBlockWorkspace(s, params);
  unit.deferred_bytes = LlamaBlockDeferredElements(s);
  unit.deferred_flops =
      s.experts > 0 ? AttentionProducts(s, params) : unit.forward_flops - unit.attention_flops;
  // Gate and up.
  unit.selective_flops =
      2.0 * hidden *
      (rows * static_cast<double>(2 * s.intermediate) + static_cast<double>(s.tokens * 2 * s.shared));
  CountLlamaBlockBytes(s, model.qk_norm, &unit);
  CountLlamaBlockKernels(s, &unit);
  if (s.latent) {
    unit.forward_flops += LatentSampleFlops(s);
    unit.deferred_flops += LatentSampleFlops(s);
    unit.repeated_flops = LatentRepeatedFlops(s);
    unit.selective_flops += LatentSelectiveFlops(s);
    CountLatent(s, &unit);
  }
  unit.exchanges = LlamaBlockExchanges(s, share.compute);
  return unit;
}

// Derives the shape of MoE layers from that of dense layers.
Shape WithExperts(Shape s, const ExpertsConfig& experts, int64_t ranks) {
  s.expert = ranks;
  s.intermediate = SliceOf(experts.intermediate_size, s.tensor);
  s.experts = experts.count;
  s.per_token = experts.per_token;
  s.shared = SliceOf(experts.shared_intermediate_size, s.tensor);
  s.selection_bias = experts.selection_bias;
  return s;
}

// Assigns the choice counts of the last added layer's selection bias.
void AddChoices(ModelFacts* facts) {
  for (ParamFacts& param : facts->units.back().params) {
    if (!param.fixed) continue;
    param.choices_begin = facts->choices;
    facts->choices += param.elements();
  }
}

ModelFacts Describe(const LlamaConfig& model, const Share& share) {
  const int64_t heads = SliceOf(model.heads, share.tensor);
  Shape s{share.tokens(),
          share.sequence,
          SliceOf(model.vocab_size, share.tensor),
          model.hidden_size,
          heads * model.head_size,
          KeyHeads(model, share.tensor) * model.head_size,
          SliceOf(model.intermediate_size, share.tensor),
          heads,
          BytesOf(share.compute),
          share.host,
          share.context,
          share.tensor};
  s.latent = model.latent;
  if (s.latent) s.query = s.key = heads * KernelHeadSize(s.latent);
  s.documents = share.documents;
  s.computed_grads = share.computed_grads;
  s.ordered_attention = share.ordered_attention;
  ModelFacts facts;
  Params words;
  Add(&words, "weight", {s.vocab, s.hidden}, s.Rows());
  const bool trains_words = !share.is_frozen("embedding.weight");
  facts.units.push_back(Embedding(s, std::move(words), LlamaEmbeddingWorkspace(s, trains_words)));
  facts.units.back().exchanges = LlamaEmbeddingExchanges(s, share.compute);
  facts.units.back().forward_kernels = 1;
  facts.units.back().backward_kernels = 14;  // Most of them sort tokens.
  for (int64_t i = 0; i < model.layers; ++i) {
    const Shape of_layer = model.HasExperts(i) ? WithExperts(s, model.experts, share.expert) : s;
    facts.units.push_back(LlamaBlock(model, i, of_layer, share));
    if (model.HasExperts(i) && model.experts.bias_update_rate > 0) AddChoices(&facts);
  }
  Params norm;
  Add(&norm, "norm", {s.hidden});
  facts.units.push_back(
      Head(s, model.tied_embeddings, std::move(norm), /*statistics=*/1, LlamaHeadWorkspace(s)));
  CountLlamaHead(s, model.tied_embeddings ? trains_words : !share.is_frozen("head.output"),
                 &facts.units.back());
  facts.units.back().exchanges = LlamaHeadExchanges(s, share.compute);
  return facts;
}

Params Gpt2BlockParams(const Shape& s) {
  Params params;
  Add(&params, "attention_norm.weight", {s.hidden});
  Add(&params, "attention_norm.bias", {s.hidden});
  Add(&params, "attention.wqkv", {3 * s.hidden, s.hidden});
  Add(&params, "attention.bqkv", {3 * s.hidden});
  Add(&params, "attention.wo", {s.hidden, s.hidden});
  Add(&params, "attention.bo", {s.hidden});
  Add(&params, "ffn_norm.weight", {s.hidden});
  Add(&params, "ffn_norm.bias", {s.hidden});
  Add(&params, "ffn.w1", {s.intermediate, s.hidden});
  Add(&params, "ffn.b1", {s.intermediate});
  Add(&params, "ffn.w2", {s.hidden, s.intermediate});
  Add(&params, "ffn.b2", {s.hidden});
  return params;
}

ModelFacts Describe(const Gpt2Config& model, const Share& share) {
  Shape s{
      share.tokens(),    share.sequence,          model.vocab_size, model.hidden_size,      model.hidden_size,
      model.hidden_size, model.intermediate_size, model.heads,      BytesOf(share.compute), share.host,
      share.context};
  s.ordered_attention = share.ordered_attention;
  ModelFacts facts;
  facts.units.push_back(
      Embedding(s, {{"weight", {s.vocab, s.hidden}}, {"positions", {model.positions, s.hidden}}},
                Gpt2EmbeddingWorkspace(s, model.positions)));
  const Params params = Gpt2BlockParams(s);
  for (int64_t i = 0; i < model.layers; ++i) {
    UnitFacts unit = Block(i, s, params);
    unit.saved_bytes = Gpt2BlockSaved(s);
    unit.workspace_bytes = Gpt2BlockWorkspace(s);
    // Two norms, two residuals, GELU.
    unit.forward_bytes = s.Bytes(10 * s.hidden + 2 * s.intermediate);
    unit.backward_bytes = 2 * unit.forward_bytes;
    facts.units.push_back(std::move(unit));
  }
  Params norm;
  Add(&norm, "norm.weight", {s.hidden});
  Add(&norm, "norm.bias", {s.hidden});
  facts.units.push_back(
      Head(s, model.tied_embeddings, std::move(norm), /*statistics=*/3, Gpt2HeadWorkspace(s)));
  CountGpt2HeadBytes(s, &facts.units.back());
  return facts;
}

// ---- Models that describe themselves.

ModelFacts Describe(const PluginConfig& model, const Share& share) {
  return DescribePlugin(model, share.tokens(), BytesOf(share.compute));
}

ModelFacts Describe(const PackageConfig& model, const Share& share) {
  return DescribePackage(model, share.grads);
}

// With documents: in addition to token ids, each token's position in its document and, for CUDA kernels, the
// document offsets (at most one per token).
void AddDocuments(const Spec& spec, SavedBytes* kept) {
  const int64_t token_bytes = spec.device == DeviceKind::kCpu ? 8 : 8 + 4;
  const int64_t bytes = spec.micro_batch * spec.data.sequence_length * token_bytes;
  for (int64_t* each : {&kept->none, &kept->selective, &kept->full}) *each += bytes;
}

bool MatchesAny(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return MatchesPattern(name, pattern); });
}

// Outputs that are added to the residual stream are initialized smaller, by the number of additions: as in
// GPT-2, and in Megatron for every model.
bool AddsToStream(const ParamFacts& param) {
  return param.name == "attention.wo" || param.name == "ffn.w2" || param.name == "ffn.experts.w2" ||
         param.name == "ffn.shared.w2";
}

void SetDeviations(const ModelConfig& model, const InitialConfig& initial, ModelFacts* facts) {
  // Parameters of these have arbitrary names.
  if (std::holds_alternative<PluginConfig>(model) || std::holds_alternative<PackageConfig>(model)) return;
  const auto layers = static_cast<double>(facts->units.size() - 2);
  const bool scaled = initial.scale_outputs.value_or(std::holds_alternative<Gpt2Config>(model));
  for (UnitFacts& unit : facts->units) {
    const bool embeds = unit.kind == UnitKind::kEmbedding;
    for (ParamFacts& param : unit.params) {
      param.deviation = embeds ? initial.embedding_deviation.value_or(initial.deviation) : initial.deviation;
      if (scaled && AddsToStream(param)) param.deviation /= std::sqrt(2.0 * layers);
    }
  }
}

}  // namespace

ModelFacts DescribeModel(const ModelConfig& model, int64_t micro_batch, int64_t sequence_length,
                         DType compute) {
  ModelFacts facts = std::visit(
      [&](const auto& config) {
        return Describe(config, {micro_batch, sequence_length, /*context=*/1,
                                 /*tensor=*/1, /*expert=*/1, compute, /*host=*/false});
      },
      model);
  SetDeviations(model, InitialConfig{}, &facts);
  return facts;
}

ModelFacts DescribeSpec(const Spec& spec) {
  const auto is_frozen = [&](const std::string& name) {
    return spec.lora.enabled() || MatchesAny(name, spec.frozen);
  };
  ModelFacts facts = std::visit(
      [&](const auto& config) {
        return Describe(
            config,
            {spec.micro_batch, spec.data.sequence_length, spec.mesh.size(Axis::kContext),
             spec.mesh.size(Axis::kTensor), spec.mesh.size(Axis::kExpert), spec.precision.compute,
             /*host=*/spec.device == DeviceKind::kCpu, spec.data.document_end_token.has_value(),
             spec.shards_grads() && spec.precision.grad_comm == spec.precision.compute,
             spec.deterministic && spec.device == DeviceKind::kCuda && spec.precision.compute != DType::kFp32,
             spec.written_grads(), is_frozen});
      },
      spec.model);
  SetDeviations(spec.model, spec.initial, &facts);
  if (spec.data.document_end_token.has_value()) AddDocuments(spec, &facts.units.front().saved_bytes);
  if (spec.lora.enabled()) {
    const int64_t tokens = spec.micro_batch * spec.data.sequence_length / spec.mesh.size(Axis::kContext);
    DescribeLora(spec.lora, tokens, spec.precision.compute, &facts);
  }
  for (UnitFacts& unit : facts.units) {
    for (ParamFacts& param : unit.params) {
      const std::string name = FullName(unit, param);
      const bool frozen = MatchesAny(name, spec.frozen);
      param.trainable = !param.fixed && !frozen;
      if (frozen) param.choices_begin = -1;
      param.weight_decay = param.decay ? spec.optimizer.weight_decay : 0;
      for (const ParamGroup& group : spec.optimizer.groups) {
        if (!MatchesAny(name, group.patterns)) continue;
        param.weight_decay = group.weight_decay.value_or(param.weight_decay);
        param.lr_scale = group.lr_scale;
        break;
      }
    }
  }
  if (spec.precision.fp8) DescribeFp8(spec, &facts);
  return facts;
}

}  // namespace fsdpd
