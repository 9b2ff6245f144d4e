// Compares presets with the published config.json of each model, from copies in public repositories: a preset
// must equal the result of model.hf_config for that file.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <set>

#include "fsdp/checkpoint/hf/hf_config.h"
#include "fsdp/checkpoint/hf/hf_config_text.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {
namespace {

struct Published {
  const char* preset;
  const char* config;  // The fields that define the model.
};

constexpr Published kPublished[] = {
    // clang-format off

    // Files of ai-dynamo/aiconfigurator, aic-core/src/aiconfigurator_core/model_configs, at
    // 095f58a51c4ca8e61b66ec108d86f223f8d559ce.
    {"llama3.1-8b", R"(
      {"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
      "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias":
      false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
      "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size":
      128256})"},
    {"llama3.1-70b", R"(
      {"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
      "hidden_size": 8192, "intermediate_size": 28672, "max_position_embeddings": 131072, "mlp_bias":
      false, "model_type": "llama", "num_attention_heads": 64, "num_hidden_layers": 80,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
      "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size":
      128256})"},
    {"llama3.1-405b", R"(
      {"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
      "hidden_size": 16384, "intermediate_size": 53248, "max_position_embeddings": 131072, "mlp_bias":
      false, "model_type": "llama", "num_attention_heads": 128, "num_hidden_layers": 126,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
      "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size":
      128256})"},
    {"qwen3-0.6b", R"(
      {"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act":
      "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
      "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers":
      28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size":
      151936})"},
    {"qwen3-8b", R"(
      {"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act":
      "silu", "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
      "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers":
      36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size":
      151936})"},
    {"qwen3-32b", R"(
      {"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act":
      "silu", "hidden_size": 5120, "intermediate_size": 25600, "max_position_embeddings": 40960,
      "max_window_layers": 64, "model_type": "qwen3", "num_attention_heads": 64, "num_hidden_layers":
      64, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size":
      151936})"},
    {"qwen3-30b-a3b", R"(
      {"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
      "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
      "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type":
      "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
      "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
      "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta":
      1000000.0, "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
      "vocab_size": 151936})"},
    {"qwen3-235b-a22b", R"(
      {"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
      "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
      "max_position_embeddings": 40960, "max_window_layers": 94, "mlp_only_layers": [], "model_type":
      "qwen3_moe", "moe_intermediate_size": 1536, "norm_topk_prob": true, "num_attention_heads": 64,
      "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4,
      "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta":
      1000000.0, "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
      "vocab_size": 151936})"},
    {"mixtral-8x7b", R"(
      {"architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
      "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps":
      1e-05, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
      "vocab_size": 32000})"},
    {"mixtral-8x22b", R"(
      {"architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 6144,
      "intermediate_size": 16384, "max_position_embeddings": 65536, "model_type": "mixtral",
      "num_attention_heads": 48, "num_experts_per_tok": 2, "num_hidden_layers": 56,
      "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps":
      1e-05, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false, "vocab_size":
      32000})"},
    {"deepseek-v3", R"(
      {"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "first_k_dense_replace": 3,
      "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
      "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
      "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
      "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers":
      61, "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim":
      64, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
      "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
      "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
      "vocab_size": 129280})"},
    // Numbers of Lightning-AI/litgpt, litgpt/config.py, at 26857050fe3ff627cd714fe92f5838f51a3d5efa, which
    // names the config.json of each. It does not contain whether embeddings are tied. For Llama 3.2 that is
    // from NVIDIA-NeMo/Megatron-Bridge, models/llama/llama_provider.py at
    // dc805f5cf9e0001c1f7c860ebb8e42c580ef45b3, for Qwen from AI-Hypercomputer/maxtext,
    // checkpoint_conversion/utils/hf_model_configs.py at e591f30cbbf217ed67ef71263ec0538239f9c3b8. Qwen 2.5
    // is the base model: the instruct models have another epsilon and length.
    {"llama3-8b", R"(
      {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
      "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps":
      1e-05, "rope_theta": 500000, "vocab_size": 128256, "tie_word_embeddings": false})"},
    {"llama3-70b", R"(
      {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
      "hidden_size": 8192, "intermediate_size": 28672, "max_position_embeddings": 8192,
      "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps":
      1e-05, "rope_theta": 500000, "vocab_size": 128256, "tie_word_embeddings": false})"},
    {"llama3.2-1b", R"(
      {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
      "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
      "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps":
      1e-05, "rope_theta": 500000, "vocab_size": 128256, "rope_scaling": {"rope_type": "llama3",
      "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}, "tie_word_embeddings": true})"},
    {"llama3.2-3b", R"(
      {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
      "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
      "num_attention_heads": 24, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps":
      1e-05, "rope_theta": 500000, "vocab_size": 128256, "rope_scaling": {"rope_type": "llama3",
      "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}, "tie_word_embeddings": true})"},
    {"llama3.3-70b", R"(
      {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
      "hidden_size": 8192, "intermediate_size": 28672, "max_position_embeddings": 131072,
      "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps":
      1e-05, "rope_theta": 500000, "vocab_size": 128256, "rope_scaling": {"rope_type": "llama3",
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}, "tie_word_embeddings": false})"},
    {"qwen2.5-7b", R"(
      {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
      "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
      "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps":
      1e-06, "rope_theta": 1000000, "vocab_size": 152064, "tie_word_embeddings": false,
      "use_sliding_window": false})"},
    {"qwen2.5-32b", R"(
      {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
      "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 131072,
      "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps":
      1e-05, "rope_theta": 1000000, "vocab_size": 152064, "tie_word_embeddings": false,
      "use_sliding_window": false})"},
    {"qwen2.5-72b", R"(
      {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
      "hidden_size": 8192, "intermediate_size": 29568, "max_position_embeddings": 131072,
      "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps":
      1e-05, "rope_theta": 1000000, "vocab_size": 152064, "tie_word_embeddings": false,
      "use_sliding_window": false})"},
    {"qwen3-4b", R"(
      {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
      "hidden_size": 2560, "intermediate_size": 9728, "max_position_embeddings": 40960,
      "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps":
      1e-06, "rope_theta": 1000000, "vocab_size": 151936, "head_dim": 128, "tie_word_embeddings": true,
      "use_sliding_window": false})"},
    {"qwen3-14b", R"(
      {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
      "hidden_size": 5120, "intermediate_size": 17408, "max_position_embeddings": 40960,
      "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps":
      1e-06, "rope_theta": 1000000, "vocab_size": 151936, "tie_word_embeddings": false,
      "use_sliding_window": false})"},
    {"mistral-7b", R"(
      {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu",
      "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps":
      1e-05, "rope_theta": 1000000, "vocab_size": 32768, "tie_word_embeddings": false, "sliding_window":
      null})"},
    // Numbers from karpathy/nanoGPT, model.py, at 3adf61e154c3fe3fca428ad6bc3818b27a3b8291.
    {"gpt2", R"(
      {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
      "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-05, "n_embd":
      768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257})"},
    {"gpt2-medium", R"(
      {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
      "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-05, "n_embd":
      1024, "n_head": 16, "n_layer": 24, "n_positions": 1024, "vocab_size": 50257})"},
    {"gpt2-large", R"(
      {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
      "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-05, "n_embd":
      1280, "n_head": 20, "n_layer": 36, "n_positions": 1024, "vocab_size": 50257})"},
    {"gpt2-xl", R"(
      {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
      "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-05, "n_embd":
      1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50257})"},
    // clang-format on
};

std::string ConfigOf(const ModelConfig& model) {
  const absl::StatusOr<std::string> text = MakeHfConfig(model, "bfloat16", 0.02);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

TEST(PublishedConfigs, PresetsEqualPublishedModels) {
  for (const Published& published : kPublished) {
    v1::Model model;
    for (const LocatedViolation& located : ReadHfConfig(published.config, published.preset, &model))
      ADD_FAILURE() << Render(located);
    const ModelConfig* preset = FindPreset(published.preset);
    ASSERT_NE(preset, nullptr) << published.preset;
    EXPECT_EQ(ConfigOf(*preset), ConfigOf(ToModelConfig(model))) << published.preset;
  }
}

TEST(PublishedConfigs, CoversEveryPreset) {
  std::set<std::string> compared = {"tiny", "llama3-1b"};
  for (const Published& published : kPublished) compared.insert(published.preset);
  for (const std::string& name : PresetNames()) EXPECT_EQ(compared.count(name), 1u) << name;
}

}  // namespace
}  // namespace fsdpd
