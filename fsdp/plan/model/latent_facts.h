// Multi-head latent attention (fsdp/model/native/native_latent_attention.h): what it keeps, needs and moves,
// for LlamaBlock's facts.
#pragma once

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {

// Attention's kernels want queries, keys and values of one width, of which CUDA's take multiples of 8: what
// is narrower has zeros beside it.
int64_t KernelHeadSize(const LatentConfig& latent);

// Of the norms of latents, whatever the model's norm_epsilon is: DeepSeek's models have it so.
constexpr double kLatentNormEpsilon = 1e-6;

// Numbers of a token, of all heads.
struct LatentWidths {
  int64_t made_of_token;  // Queries or their latent, the latent of keys and values, and the rotated key.
  int64_t queries;
  int64_t keys_and_values;  // Without the rotated key.
  int64_t values;
};
LatentWidths WidthsOf(const Shape& s);

// What attention keeps of each token for its backward: numbers in compute precision, and fp32 statistics
// beside 1/rms of its input.
struct AttentionSaved {
  int64_t all = 0;
  int64_t selective = 0;
  int64_t all_statistics = 0;
  int64_t selective_statistics = 0;
};
// Selective leaves out what is made of the latents, which is most of it.
AttentionSaved LatentSaved(const Shape& s);
double LatentSelectiveFlops(const Shape& s);

// What products with the gradients of its matrices read (LlamaBlockPutOff), of each token.
int64_t LatentPutOff(const Shape& s);

// Where ranks share samples: the numbers of whole samples that keys and values are made of, and what a rank
// computes in forward to make those of other ranks' tokens.
int64_t SampleLatents(const Shape& s);
double LatentSampleFlops(const Shape& s);

// What of its forward's FLOPs other ranks compute too: that, and latents, which ranks that share matrices
// make of all tokens each.
double LatentRepeatedFlops(const Shape& s);

// Memory of its backward beside what forward kept.
int64_t LatentWorkspace(const Shape& s);

// What CUDA's kernels move beside products and attention, and how many they are, beside those of a block with
// key heads.
void CountLatent(const Shape& s, UnitFacts* unit);

}  // namespace fsdpd
