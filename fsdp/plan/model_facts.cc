#include "fsdp/plan/model_facts.h"

#include <absl/strings/str_cat.h>

namespace fsdpd {
namespace {

// The sizes that every estimate is made of.
struct Shape {
  int64_t tokens;  // Of one micro-batch.
  int64_t hidden;
  int64_t query;  // Width of all query heads.
  int64_t key;    // Width of all key heads, and of all value heads.
  int64_t intermediate;
  int64_t vocab;
  int64_t heads;
  int64_t compute_bytes;  // Of one element in compute precision.
};

int64_t NormStatisticsBytes(const Shape& s) { return s.tokens * 4; }  // 1/rms per token, fp32.

UnitFacts Embedding(const Shape& s) {
  UnitFacts unit{"embedding", UnitKind::kEmbedding, {{"weight", {s.vocab, s.hidden}, true}}};
  unit.input_bytes = s.tokens * 8;  // Token ids.
  unit.activation_bytes = unit.input_bytes;
  // The output in forward; in backward the dense gradient before it is added to the bucket.
  unit.workspace_bytes = (s.tokens * s.hidden + unit.elements()) * s.compute_bytes;
  return unit;
}

// What autograd saves for a block of LibTorch operators, in order of the forward.
int64_t BlockActivationBytes(const Shape& s) {
  const int64_t elements = s.hidden               // Input: of the attention norm, and of the residual.
                           + s.hidden             // Normed: of wq, wk, wv.
                           + s.query + s.key      // Rotated q and k.
                           + s.key                // v.
                           + s.query              // Attention's output, for its own backward,
                           + s.query              // ... and contiguous by token, for wo.
                           + s.hidden             // After the first residual: of the FFN norm.
                           + s.hidden             // Normed: of w1, w3.
                           + s.intermediate * 4;  // w1's output, w3's, silu(w1), and the product, for w2.
  const int64_t log_sum_exp = s.tokens * s.heads * 4;
  return s.tokens * elements * s.compute_bytes + 2 * NormStatisticsBytes(s) + log_sum_exp;
}

UnitFacts Block(int64_t index, const Shape& s, int64_t sequence_length) {
  UnitFacts unit{absl::StrCat("layer.", index),
                 UnitKind::kBlock,
                 {{"attention_norm", {s.hidden}, false},
                  {"attention.wq", {s.query, s.hidden}, true},
                  {"attention.wk", {s.key, s.hidden}, true},
                  {"attention.wv", {s.key, s.hidden}, true},
                  {"attention.wo", {s.hidden, s.query}, true},
                  {"ffn_norm", {s.hidden}, false},
                  {"ffn.w1", {s.intermediate, s.hidden}, true},
                  {"ffn.w3", {s.intermediate, s.hidden}, true},
                  {"ffn.w2", {s.hidden, s.intermediate}, true}}};
  unit.input_bytes = s.tokens * s.hidden * s.compute_bytes;
  unit.activation_bytes = BlockActivationBytes(s);
  // Backward's peak: gradients of the product and of its two factors, the residual's gradient in and out, and
  // the parameters' gradients as autograd returns them, before they are added to the bucket.
  unit.workspace_bytes = (s.tokens * (3 * s.intermediate + 2 * s.hidden) + unit.elements()) * s.compute_bytes;
  const double matrices = static_cast<double>(unit.elements() - 2 * s.hidden);
  const double tokens = static_cast<double>(s.tokens);
  // Two products of [sequence x sequence] per head at 2 FLOPs each, of which causality needs half.
  unit.forward_flops = 2 * tokens * matrices + 2 * tokens * static_cast<double>(sequence_length * s.query);
  return unit;
}

UnitFacts Head(const Shape& s) {
  UnitFacts unit{
      "head", UnitKind::kHead, {{"norm", {s.hidden}, false}, {"output", {s.vocab, s.hidden}, true}}};
  unit.input_bytes = s.tokens * s.hidden * s.compute_bytes;
  const int64_t logits = s.tokens * s.vocab;
  // Input, normed, log-softmax in fp32, and the targets.
  unit.activation_bytes = 2 * unit.input_bytes + NormStatisticsBytes(s) + logits * 4 + s.tokens * 8;
  // The logits in fp32 (forward) or their gradient (backward), both beside their copy in compute precision.
  unit.workspace_bytes = logits * (4 + s.compute_bytes) + unit.elements() * s.compute_bytes;
  unit.forward_flops = 2.0 * static_cast<double>(s.tokens) * static_cast<double>(s.vocab * s.hidden);
  return unit;
}

}  // namespace

int64_t ParamFacts::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

int64_t UnitFacts::elements() const {
  int64_t sum = 0;
  for (const ParamFacts& param : params) sum += param.elements();
  return sum;
}

int64_t ModelFacts::elements() const {
  int64_t sum = 0;
  for (const UnitFacts& unit : units) sum += unit.elements();
  return sum;
}

ModelFacts DescribeLlama(const LlamaConfig& model, int64_t micro_batch, int64_t sequence_length,
                         DType compute) {
  const Shape shape{micro_batch * sequence_length,
                    model.hidden_size,
                    model.heads * model.head_size(),
                    model.kv_heads * model.head_size(),
                    model.intermediate_size,
                    model.vocab_size,
                    model.heads,
                    BytesOf(compute)};
  ModelFacts facts;
  facts.units.push_back(Embedding(shape));
  for (int64_t i = 0; i < model.layers; ++i) facts.units.push_back(Block(i, shape, sequence_length));
  facts.units.push_back(Head(shape));
  return facts;
}

}  // namespace fsdpd
