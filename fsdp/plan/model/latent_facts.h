// Facts of multi-head latent attention (MLA, fsdp/model/native/native_latent_attention.h): saved activations,
// workspace and memory traffic, for the facts of a Llama layer.
#pragma once

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {

// Head size of the attention kernel: queries, keys and values must have the same width, on CUDA a multiple of
// 8. Narrower ones are padded with zeros.
int64_t KernelHeadSize(const LatentConfig& latent);

// Epsilon of the norms of latents, regardless of the model's norm_epsilon, as in DeepSeek's implementation.
constexpr double kLatentNormEpsilon = 1e-6;

// Elements per token, over all heads.
struct LatentWidths {
  // Projected from the hidden state: queries or their latent, the key/value latent, the rotary key.
  int64_t made_of_token;
  int64_t queries;
  int64_t keys_and_values;  // Without the rotary key.
  int64_t values;
};
LatentWidths WidthsOf(const Shape& s);

// Saved activations of attention per token: elements in compute precision, and fp32 statistics other than
// 1/rms of its input.
struct AttentionSaved {
  int64_t all = 0;
  int64_t selective = 0;
  int64_t all_statistics = 0;
  int64_t selective_statistics = 0;
};
// Selective recompute drops the projections of the latents, which are most of it.
AttentionSaved LatentSaved(const Shape& s);
double LatentSelectiveFlops(const Shape& s);

// Elements per token that deferred weight gradients read (LlamaBlockDeferredElements).
int64_t LatentDeferredElements(const Shape& s);

// With context parallelism: elements of whole samples from which keys and values are projected, and forward
// FLOPs to project those of other ranks' tokens.
int64_t SampleLatents(const Shape& s);
double LatentSampleFlops(const Shape& s);

// Forward FLOPs that other ranks repeat: the above, and the latents, which every tensor-parallel rank
// computes for all tokens.
double LatentRepeatedFlops(const Shape& s);

// Workspace of its backward.
int64_t LatentWorkspace(const Shape& s);

// Adds the CUDA memory traffic (other than products and attention) and the kernel count by which MLA differs
// from a layer with key heads.
void CountLatent(const Shape& s, UnitFacts* unit);

}  // namespace fsdpd
