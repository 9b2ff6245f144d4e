// Small model configurations for tests that inspect individual parameters. Tests change the fields that they
// are about.
#pragma once

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

LlamaConfig SmallLlama();
// Enables every Llama option: biases and query/key norms. Uses grouped-query attention.
LlamaConfig SmallLlamaWithAll();
LlamaConfig SmallMixtral();
LlamaConfig SmallQwen3Moe();  // First layer is dense.
LlamaConfig SmallDots1();     // First layer is dense; every routing option.
LlamaConfig SmallDeepSeek();  // First layer is dense; latent attention.
Gpt2Config SmallGpt2();

// Switches `config` to multi-head latent attention (one key and value head per query head).
void SetLatent(const LatentConfig& latent, LlamaConfig* config);

// No size is a multiple of another, so a mixed-up size cannot go unnoticed.
LlamaConfig OddLlama();
Gpt2Config OddGpt2();

}  // namespace fsdpd
