#include "fsdp/plan/model/latent_facts.h"

#include <algorithm>

#include "fsdp/plan/model/attention_workspace.h"

namespace fsdpd {
namespace {

constexpr int64_t kFp32Bytes = 4;
constexpr int64_t kHeadStep = 8;

}  // namespace

int64_t KernelHeadSize(const LatentConfig& latent) {
  const int64_t widest = std::max(latent.plain_head_size + latent.rotary_head_size, latent.value_head_size);
  return (widest + kHeadStep - 1) / kHeadStep * kHeadStep;
}

LatentWidths WidthsOf(const Shape& s) {
  const LatentConfig& latent = s.latent;
  const int64_t queries = s.heads * (latent.plain_head_size + latent.rotary_head_size);
  return {(latent.query_rank > 0 ? latent.query_rank : queries) + latent.rank + latent.rotary_head_size,
          queries, s.heads * (latent.plain_head_size + latent.value_head_size),
          s.heads * latent.value_head_size};
}

AttentionSaved LatentSaved(const Shape& s) {
  const LatentWidths widths = WidthsOf(s);
  const bool query_latent = s.latent.query_rank > 0;
  AttentionSaved kept;
  kept.selective = widths.made_of_token + widths.values;
  kept.all = kept.selective + (query_latent ? widths.queries : 0);
  kept.selective_statistics = s.heads;  // Log-sum-exp.
  kept.all_statistics = s.heads + (query_latent ? 1 : 0);
  if (s.context > 1) return kept;  // Keys and values of whole samples are not saved.
  kept.all += widths.keys_and_values;
  ++kept.all_statistics;
  return kept;
}

double LatentSelectiveFlops(const Shape& s) {
  const LatentWidths widths = WidthsOf(s);
  const int64_t matrices = s.latent.query_rank * widths.queries + s.latent.rank * widths.keys_and_values;
  return 2.0 * static_cast<double>(s.tokens) * static_cast<double>(matrices);
}

int64_t LatentDeferredElements(const Shape& s) {
  const LatentWidths widths = WidthsOf(s);
  const int64_t queries = s.latent.query_rank > 0 ? s.latent.query_rank + widths.queries : 0;
  return 2 * s.hidden + widths.made_of_token + queries + widths.values +
         s.context * (s.latent.rank + widths.keys_and_values);
}

int64_t SampleLatents(const Shape& s) {
  return s.tokens * s.context * (s.latent.rank + s.latent.rotary_head_size);
}

double LatentSampleFlops(const Shape& s) {
  const LatentWidths widths = WidthsOf(s);
  return 2.0 * static_cast<double>(s.tokens * (s.context - 1)) *
         static_cast<double>(s.latent.rank * widths.keys_and_values);
}

double LatentRepeatedFlops(const Shape& s) {
  const int64_t latents = s.latent.query_rank + s.latent.rank + s.latent.rotary_head_size;
  const double made = 2.0 * static_cast<double>(s.tokens) * static_cast<double>(latents * s.hidden);
  const double others = static_cast<double>(s.tensor - 1) / static_cast<double>(s.tensor);
  return LatentSampleFlops(s) + made * others;
}

// Gradients of the layer's output and of the residual sum; keys and values in kernel layout; the kernel's
// three gradients and the gradient of its output. If values are padded, the output and its gradient exist in
// both widths.
int64_t LatentWorkspace(const Shape& s) {
  const LatentWidths widths = WidthsOf(s);
  const int64_t padded_values = widths.values < s.query ? s.query : 0;
  const int64_t padded_queries = widths.queries < s.query ? s.query : 0;
  const int64_t made = s.Bytes(2 * s.query + padded_values + padded_queries) + 2 * s.HiddenBytes();
  // Context parallel: latents, keys and values of whole samples, in kernel layout too, and their gradients,
  // in addition to those of one chunk of queries.
  if (s.context > 1) {
    const int64_t samples = s.tokens * s.context / s.sequence;
    const int64_t sums = s.host ? 0 : QuerySumBytes(s, samples, s.tokens / SequencePartition::kChunksPerRank);
    const int64_t all = s.tokens * s.context;
    const int64_t keys = (SampleLatents(s) + all * widths.keys_and_values) * s.compute_bytes;
    const int64_t attention = made + s.Bytes(2 * s.query) + sums + keys + 3 * s.AllKeys() * s.compute_bytes;
    // Backward of the key/value projection from gathered latents.
    const int64_t latents = all * s.latent.rank * (3 * s.compute_bytes + (s.host ? 3 * kFp32Bytes : 0));
    return std::max(attention,
                    2 * s.HiddenBytes() + s.Bytes(s.query) + keys + s.AllKeys() * s.compute_bytes + latents);
  }
  if (s.host) return made + s.Bytes(4 * s.query);
  return made + s.Bytes(s.query) + (s.documents ? DocumentsAttentionBytes(s) : OrderedAttentionBytes(s));
}

void CountLatent(const Shape& s, UnitFacts* unit) {
  const LatentWidths widths = WidthsOf(s);
  const int64_t latents = s.latent.query_rank + s.latent.rank;
  // Rotary parts: computed in fp32 by separate operators; read, two intermediate results, write.
  const int64_t rotated = s.tokens * (s.heads + 1) * s.latent.rotary_head_size;
  const int64_t rotation = 2 * rotated * s.compute_bytes + 2 * rotated * kFp32Bytes;
  // Packing keys and values into kernel layout, and unpacking the output.
  const int64_t built = s.context * (widths.keys_and_values + 2 * s.query) + widths.values + s.query;
  unit->forward_bytes += s.Bytes(4 * latents + built) + rotation;
  unit->backward_bytes += s.Bytes(7 * latents + 3 * built) + rotation;
  unit->forward_kernels += 24;
  unit->backward_kernels += 50;
  if (s.host || s.compute_bytes == kFp32Bytes) return;
  unit->flash_work = static_cast<double>(2 * s.query) / static_cast<double>(s.pair_width());
  if (s.context == 1) return;
  // Gradients of whole samples' keys and values: zero fill, then accumulation for both chunks of queries.
  unit->backward_bytes += 5 * s.AllKeys() * s.compute_bytes;
}

}  // namespace fsdpd
