// Models for tests that read, write, name or compare their parameters: small enough to be looked at number by
// number. Tests change what they are about.
#pragma once

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

LlamaConfig SmallLlama();
// With what a Llama may have: biases, and norms of queries and keys. Groups of heads share keys and values.
LlamaConfig SmallLlamaWithAll();
LlamaConfig SmallMixtral();
LlamaConfig SmallQwen3Moe();  // Its first layer has no experts.
LlamaConfig SmallDots1();     // Likewise, and with what routing may have.
LlamaConfig SmallDeepSeek();  // Likewise, with latent attention.
Gpt2Config SmallGpt2();

// Gives a model's heads latent attention: each has keys and values of its own.
void SetLatent(const LatentConfig& latent, LlamaConfig* config);

// No size is another's multiple, so nothing fits that was taken for something else.
LlamaConfig OddLlama();
Gpt2Config OddGpt2();

}  // namespace fsdpd
