#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {

LlamaConfig SmallLlama() {
  LlamaConfig llama;
  llama.vocab_size = 32;
  llama.hidden_size = 8;
  llama.intermediate_size = 12;
  llama.layers = 2;
  llama.heads = 2;
  llama.kv_heads = 1;
  llama.head_size = 4;
  return llama;
}

LlamaConfig SmallLlamaWithAll() {
  LlamaConfig llama = SmallLlama();
  llama.layers = 3;
  llama.heads = 4;
  llama.kv_heads = 2;
  llama.qk_norm = llama.attention_bias = true;
  return llama;
}

LlamaConfig SmallMixtral() {
  LlamaConfig llama = SmallLlama();
  llama.experts = {4, 2, llama.intermediate_size};
  return llama;
}

LlamaConfig SmallQwen3Moe() {
  LlamaConfig llama = SmallLlama();
  llama.qk_norm = true;
  llama.experts = {5, 3, 6, /*normalized=*/false, /*dense_layers=*/1};
  return llama;
}

LlamaConfig SmallDots1() {
  LlamaConfig llama = SmallQwen3Moe();
  llama.experts.count = 8;
  llama.experts.sigmoid = llama.experts.selection_bias = true;
  llama.experts.groups = 4;
  llama.experts.groups_per_token = 2;
  llama.experts.weight_scale = 2.5;
  llama.experts.shared_intermediate_size = 2 * llama.experts.intermediate_size;
  return llama;
}

LlamaConfig SmallDeepSeek() {
  LlamaConfig llama = SmallDots1();
  llama.qk_norm = false;
  llama.latent = {/*rank=*/6, /*query_rank=*/5, /*plain_head_size=*/4, /*rotary_head_size=*/2,
                  /*value_head_size=*/3};
  llama.kv_heads = llama.heads;
  llama.head_size = llama.latent.plain_head_size + llama.latent.rotary_head_size;
  return llama;
}

Gpt2Config SmallGpt2() {
  Gpt2Config gpt2;
  gpt2.vocab_size = 32;
  gpt2.hidden_size = 8;
  gpt2.intermediate_size = 32;
  gpt2.layers = 2;
  gpt2.heads = 2;
  gpt2.positions = 16;
  return gpt2;
}

void SetLatent(const LatentConfig& latent, LlamaConfig* config) {
  config->latent = latent;
  config->kv_heads = config->heads;
  config->head_size = latent.plain_head_size + latent.rotary_head_size;
}

LlamaConfig OddLlama() {
  LlamaConfig llama = SmallLlama();
  llama.vocab_size = 7;
  llama.hidden_size = 5;
  llama.intermediate_size = 9;
  llama.head_size = 6;
  return llama;
}

Gpt2Config OddGpt2() {
  Gpt2Config gpt2 = SmallGpt2();
  gpt2.vocab_size = 7;
  gpt2.hidden_size = 6;
  gpt2.intermediate_size = 10;
  gpt2.positions = 5;
  return gpt2;
}

}  // namespace fsdpd
