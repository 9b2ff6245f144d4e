// Built-in model configurations: published base models, by the name of model.preset. Each but `tiny` and
// `llama3-1b` is compared with its published config.json (fsdp/checkpoint/hf/published_configs_test.cc).
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {
namespace {

struct Preset {
  const char* name;
  ModelConfig config;
};

// A preset of a family; `family` has the remaining values.
LlamaConfig Sized(LlamaConfig family, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                  int64_t kv_heads, int64_t head_size) {
  family.hidden_size = hidden;
  family.intermediate_size = intermediate;
  family.layers = layers;
  family.heads = heads;
  family.kv_heads = kv_heads;
  family.head_size = head_size;
  return family;
}

LlamaConfig Family(int64_t vocab, double rope_theta, double norm_epsilon, int64_t positions) {
  LlamaConfig c;
  c.vocab_size = vocab;
  c.rope_theta = rope_theta;
  c.norm_epsilon = norm_epsilon;
  c.positions = positions;
  return c;
}

LlamaConfig Tiny() { return Sized(Family(256, 10000, 1e-5, 0), 128, 384, 4, 4, 2, 32); }

LlamaConfig Llama3() { return Family(128256, 500000, 1e-5, 8192); }

LlamaConfig Llama31(double factor = 8) {
  LlamaConfig c = Family(128256, 500000, 1e-5, 131072);
  c.rope_scaling.factor = factor;
  c.rope_scaling.low_freq_factor = 1;
  c.rope_scaling.high_freq_factor = 4;
  c.rope_scaling.original_positions = 8192;
  return c;
}

LlamaConfig Llama32() {
  LlamaConfig c = Llama31(32);
  c.tied_embeddings = true;
  return c;
}

LlamaConfig Qwen25(double norm_epsilon) {
  LlamaConfig c = Family(152064, 1000000, norm_epsilon, 131072);
  c.attention_bias = true;
  return c;
}

LlamaConfig Qwen3(bool tied = false) {
  LlamaConfig c = Family(151936, 1000000, 1e-6, 40960);
  c.qk_norm = true;
  c.tied_embeddings = tied;
  return c;
}

LlamaConfig WithExperts(LlamaConfig c, int64_t count, int64_t per_token, int64_t intermediate) {
  c.experts.count = count;
  c.experts.per_token = per_token;
  c.experts.intermediate_size = intermediate;
  return c;
}

LlamaConfig Mixtral(int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads, int64_t positions) {
  const LlamaConfig c = Family(32000, 1000000, 1e-5, positions);
  return WithExperts(Sized(c, hidden, intermediate, layers, heads, 8, 128), 8, 2, intermediate);
}

// Without the multi-token prediction (MTP) layer.
LlamaConfig DeepSeekV3() {
  LlamaConfig c = Sized(Family(129280, 10000, 1e-6, 163840), 7168, 18432, 61, 128, 128, 128 + 64);
  c.latent.rank = 512;
  c.latent.query_rank = 1536;
  c.latent.plain_head_size = 128;
  c.latent.rotary_head_size = 64;
  c.latent.value_head_size = 128;
  c.rope_scaling.factor = 40;
  c.rope_scaling.low_freq_factor = 1;
  c.rope_scaling.high_freq_factor = 32;
  c.rope_scaling.original_positions = 4096;
  c.rope_scaling.yarn = true;
  c.rope_scaling.mscale = 1;
  c.rope_scaling.mscale_all_dim = 1;
  c = WithExperts(c, 256, 8, 2048);
  c.experts.dense_layers = 3;
  c.experts.sigmoid = true;
  c.experts.selection_bias = true;
  c.experts.groups = 8;
  c.experts.groups_per_token = 4;
  c.experts.weight_scale = 2.5;
  c.experts.shared_intermediate_size = 2048;
  return c;
}

Gpt2Config Gpt2(int64_t hidden, int64_t layers, int64_t heads) {
  Gpt2Config c;
  c.vocab_size = 50257;
  c.hidden_size = hidden;
  c.intermediate_size = 4 * hidden;
  c.layers = layers;
  c.heads = heads;
  c.positions = 1024;
  return c;
}

const std::vector<Preset>& Presets() {
  static const auto* presets = new std::vector<Preset>{
      {"tiny", Tiny()},
      {"llama3-1b", Sized(Llama3(), 2048, 8192, 16, 32, 8, 64)},
      {"llama3-8b", Sized(Llama3(), 4096, 14336, 32, 32, 8, 128)},
      {"llama3-70b", Sized(Llama3(), 8192, 28672, 80, 64, 8, 128)},
      {"llama3.1-8b", Sized(Llama31(), 4096, 14336, 32, 32, 8, 128)},
      {"llama3.1-70b", Sized(Llama31(), 8192, 28672, 80, 64, 8, 128)},
      {"llama3.1-405b", Sized(Llama31(), 16384, 53248, 126, 128, 8, 128)},
      {"llama3.2-1b", Sized(Llama32(), 2048, 8192, 16, 32, 8, 64)},
      {"llama3.2-3b", Sized(Llama32(), 3072, 8192, 28, 24, 8, 128)},
      {"llama3.3-70b", Sized(Llama31(), 8192, 28672, 80, 64, 8, 128)},
      {"qwen2.5-7b", Sized(Qwen25(1e-6), 3584, 18944, 28, 28, 4, 128)},
      {"qwen2.5-32b", Sized(Qwen25(1e-5), 5120, 27648, 64, 40, 8, 128)},
      {"qwen2.5-72b", Sized(Qwen25(1e-5), 8192, 29568, 80, 64, 8, 128)},
      {"qwen3-0.6b", Sized(Qwen3(/*tied=*/true), 1024, 3072, 28, 16, 8, 128)},
      {"qwen3-4b", Sized(Qwen3(/*tied=*/true), 2560, 9728, 36, 32, 8, 128)},
      {"qwen3-8b", Sized(Qwen3(), 4096, 12288, 36, 32, 8, 128)},
      {"qwen3-14b", Sized(Qwen3(), 5120, 17408, 40, 40, 8, 128)},
      {"qwen3-32b", Sized(Qwen3(), 5120, 25600, 64, 64, 8, 128)},
      {"qwen3-30b-a3b", WithExperts(Sized(Qwen3(), 2048, 6144, 48, 32, 4, 128), 128, 8, 768)},
      {"qwen3-235b-a22b", WithExperts(Sized(Qwen3(), 4096, 12288, 94, 64, 4, 128), 128, 8, 1536)},
      {"mistral-7b", Sized(Family(32768, 1000000, 1e-5, 32768), 4096, 14336, 32, 32, 8, 128)},
      {"mixtral-8x7b", Mixtral(4096, 14336, 32, 32, 32768)},
      {"mixtral-8x22b", Mixtral(6144, 16384, 56, 48, 65536)},
      {"deepseek-v3", DeepSeekV3()},
      {"gpt2", Gpt2(768, 12, 12)},
      {"gpt2-medium", Gpt2(1024, 24, 16)},
      {"gpt2-large", Gpt2(1280, 36, 20)},
      {"gpt2-xl", Gpt2(1600, 48, 25)},
  };
  return *presets;
}

}  // namespace

const ModelConfig* FindPreset(const std::string& name) {
  for (const Preset& preset : Presets()) {
    if (name == preset.name) return &preset.config;
  }
  return nullptr;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) names.push_back(preset.name);
  return names;
}

}  // namespace fsdpd
