#include "fsdp/checkpoint/hf/hf_config.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>

#include <tuple>

namespace fsdpd {
namespace {

constexpr char kLlama[] = R"({
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 128000,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 14336,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05,
  "rope_scaling": null,
  "rope_theta": 500000.0,
  "tie_word_embeddings": false,
  "vocab_size": 128256
})";

constexpr char kMistral[] = R"({
  "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu",
  "head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336, "max_position_embeddings": 131072,
  "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 131072
})";

constexpr char kQwen2[] = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
  "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
  "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 4096, "tie_word_embeddings": true, "use_sliding_window": false,
  "vocab_size": 151936
})";

constexpr char kQwen3[] = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "head_dim": 128,
  "hidden_size": 2560, "intermediate_size": 9728, "max_position_embeddings": 40960, "max_window_layers": 36,
  "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "use_sliding_window": false, "vocab_size": 151936
})";

constexpr char kMixtral[] = R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false, "router_aux_loss_coef": 0.02,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "vocab_size": 32000
})";

constexpr char kDeepSeekV3[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
  "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
  "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
  "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
  "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280
})";

// What differs in DeepSeek-V2: 160 experts in eight groups.
constexpr char kDeepSeekV2[] = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 12288,
  "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
  "moe_intermediate_size": 1536, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 160,
  "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 128, "num_experts_per_tok": 6,
  "num_hidden_layers": 60, "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 16.0, "scoring_func": "softmax", "seq_aux": true,
  "tie_word_embeddings": false, "topk_group": 3, "topk_method": "group_limited_greedy", "v_head_dim": 128,
  "vocab_size": 102400
})";

constexpr char kQwen3Moe[] = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false,
  "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
  "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 48, "num_key_value_heads": 4, "rope_theta": 1000000.0, "sliding_window": null,
  "use_sliding_window": false, "vocab_size": 151936
})";

constexpr char kGpt2[] = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "model_type": "gpt2",
  "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
  "scale_attn_weights": true, "vocab_size": 50257
})";

constexpr char kLlama3Scaling[] = R"("rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"})";

std::string With(const char* good, const std::string& piece, const std::string& instead) {
  EXPECT_TRUE(absl::StrContains(good, piece)) << piece;
  return absl::StrReplaceAll(good, {{piece, instead}});
}

v1::Model Read(const std::string& text) {
  v1::Model model;
  for (const LocatedViolation& fault : ReadHfConfig(text, "c.json", &model)) {
    if (fault.violation.level == ViolationLevel::kError) ADD_FAILURE() << Render(fault);
  }
  return model;
}

std::string ViolationsOf(const std::string& text) {
  v1::Model model;
  std::string violations;
  for (const LocatedViolation& fault : ReadHfConfig(text, "c.json", &model))
    violations += Render(fault) + "\n";
  return violations;
}

// Violations of the valid file with one piece of text replaced.
std::string ViolationsWith(const std::string& piece, const std::string& instead) {
  return ViolationsOf(With(kLlama, piece, instead));
}

TEST(HfConfig, ReadsLlama3) {
  const v1::Llama llama = Read(kLlama).llama();
  EXPECT_EQ(llama.vocab_size(), 128256);
  EXPECT_EQ(llama.hidden_size(), 4096);
  EXPECT_EQ(llama.intermediate_size(), 14336);
  EXPECT_EQ(llama.layers(), 32);
  EXPECT_EQ(llama.heads(), 32);
  EXPECT_EQ(llama.kv_heads(), 8);
  EXPECT_EQ(llama.head_size(), 128);
  EXPECT_EQ(llama.rope_theta(), 500000);
  EXPECT_EQ(llama.norm_epsilon(), 1e-5);
  EXPECT_FALSE(llama.tied_embeddings());
  EXPECT_FALSE(llama.qk_norm());
  EXPECT_FALSE(llama.attention_bias());
  EXPECT_FALSE(llama.has_rope_scaling());
}

TEST(HfConfig, ReadsLlama31Scaling) {
  const v1::Llama llama = Read(With(kLlama, "\"rope_scaling\": null", kLlama3Scaling)).llama();
  EXPECT_EQ(llama.rope_scaling().factor(), 8);
  EXPECT_EQ(llama.rope_scaling().low_freq_factor(), 1);
  EXPECT_EQ(llama.rope_scaling().high_freq_factor(), 4);
  EXPECT_EQ(llama.rope_scaling().original_positions(), 8192);
}

// Regression test: the second value was used silently.
TEST(HfConfig, RejectsDuplicateRopeTheta) {
  const std::string piece = "\"rope_theta\": 500000.0";
  EXPECT_TRUE(absl::StrContains(
      ViolationsWith(piece, R"("rope_theta": 10000.0, "rope_parameters": {"rope_theta": 500000.0})"),
      "rope_parameters.rope_theta is 500000.0, but another rope_theta of the file is 10000; "
      "remove the wrong one [hf_two_values]"));
  EXPECT_EQ(ViolationsWith(piece, R"("rope_theta": 5e5, "rope_parameters": {"rope_theta": 500000.0})"), "");
}

TEST(HfConfig, ReadsRopeParametersOfNewerFiles) {
  const v1::Llama plain = Read(With(kLlama, "\"rope_theta\": 500000.0",
                                    R"("rope_parameters": {"rope_theta": 1e6, "rope_type": "default"})"))
                              .llama();
  EXPECT_EQ(plain.rope_theta(), 1e6);
  EXPECT_FALSE(plain.has_rope_scaling());
  const std::string scaled = absl::StrReplaceAll(kLlama3Scaling, {{"rope_scaling", "rope_parameters"}});
  EXPECT_EQ(Read(With(kLlama, "\"rope_scaling\": null", scaled)).llama().rope_scaling().factor(), 8);
}

TEST(HfConfig, ReadsMistralWithNarrowHeads) {
  const v1::Llama llama = Read(kMistral).llama();
  EXPECT_EQ(llama.head_size(), 128);
  EXPECT_EQ(llama.hidden_size(), 5120);
  EXPECT_FALSE(llama.attention_bias());
  EXPECT_FALSE(llama.qk_norm());
}

TEST(HfConfig, ReadsQwen2BiasesAndQwen3HeadNorms) {
  const v1::Llama qwen2 = Read(kQwen2).llama();
  EXPECT_TRUE(qwen2.attention_bias());
  EXPECT_FALSE(qwen2.qk_norm());
  EXPECT_TRUE(qwen2.tied_embeddings());
  EXPECT_EQ(qwen2.head_size(), 64);
  const v1::Llama qwen3 = Read(kQwen3).llama();
  EXPECT_FALSE(qwen3.attention_bias());
  EXPECT_TRUE(qwen3.qk_norm());
  EXPECT_EQ(qwen3.head_size(), 128);
}

TEST(HfConfig, ReadsMixtralAndQwen3Moe) {
  const v1::Llama mixtral = Read(kMixtral).llama();
  EXPECT_EQ(mixtral.experts().count(), 8);
  EXPECT_EQ(mixtral.experts().per_token(), 2);
  EXPECT_FALSE(mixtral.experts().has_intermediate_size());  // That of the model.
  EXPECT_TRUE(mixtral.experts().normalized());
  EXPECT_EQ(mixtral.experts().balance_loss(), 0);
  EXPECT_FALSE(mixtral.qk_norm());
  EXPECT_EQ(mixtral.rope_theta(), 1e6);
  const v1::Llama qwen = Read(kQwen3Moe).llama();
  EXPECT_EQ(qwen.experts().count(), 128);
  EXPECT_EQ(qwen.experts().per_token(), 8);
  EXPECT_EQ(qwen.experts().intermediate_size(), 768);
  EXPECT_EQ(qwen.intermediate_size(), 6144);
  EXPECT_TRUE(qwen.experts().normalized());
  EXPECT_EQ(qwen.experts().dense_layers(), 0);
  EXPECT_TRUE(qwen.qk_norm());
  EXPECT_EQ(qwen.head_size(), 128);
}

TEST(HfConfig, SupportsLeadingDenseLayersOnly) {
  const auto with = [](const char* layers) {
    return With(kQwen3Moe, R"("mlp_only_layers": [])", absl::StrCat(R"("mlp_only_layers": )", layers));
  };
  EXPECT_EQ(Read(with("[1, 0]")).llama().experts().dense_layers(), 2);
  EXPECT_TRUE(
      absl::StrContains(ViolationsOf(with("[3]")), "a list of mlp_only_layers other than the first layers"));
  const std::string step = With(kQwen3Moe, R"("decoder_sparse_step": 1)", R"("decoder_sparse_step": 2)");
  EXPECT_TRUE(absl::StrContains(ViolationsOf(step), "decoder_sparse_step above 1"));
  EXPECT_EQ(Read(with("[0, 48]")).llama().experts().dense_layers(), 1) << "there is no layer 48";
  EXPECT_TRUE(absl::StrContains(ViolationsOf(with("\"x\"")), "mlp_only_layers 'x' is not a list"));
  EXPECT_TRUE(absl::StrContains(ViolationsOf(with("[\"x\"]")), "is not a list of layer numbers"));
  const std::string none = With(kQwen3Moe, R"("decoder_sparse_step": 1)", R"("decoder_sparse_step": 0)");
  EXPECT_EQ(ViolationsOf(none),
            "c.json:3:26: error: model.hf_config: decoder_sparse_step '0' is not a positive integer "
            "[wrong_type]\n");
}

// Regression test: violations of the spec had line 1, and names that the file does not contain.
TEST(HfConfig, ReportsPositionOfEachField) {
  v1::Model model;
  FieldPlaces places;
  EXPECT_TRUE(ReadHfConfig(kMixtral, "c.json", &model, &places).empty());
  const Violation of_experts{"r", ViolationLevel::kError, "model.llama.experts.per_token", "is wrong", "", "",
                             ""};
  EXPECT_EQ(Render(Locate(of_experts, places)),
            "c.json:3:58: error: num_experts_per_tok, here model.llama.experts.per_token: is wrong [r]");
  const Violation absent{"r", ViolationLevel::kError, "model.llama.experts.groups", "is wrong", "", "", ""};
  EXPECT_EQ(Render(Locate(absent, places)), "c.json:1:1: error: model.llama.experts.groups: is wrong [r]");
}

TEST(HfConfig, KeepsRouterLossAndDropsNoise) {
  const std::string with =
      With(kMixtral, R"("output_router_logits": false)", R"("output_router_logits": true)");
  EXPECT_DOUBLE_EQ(Read(with).llama().experts().balance_loss(), 0.02 * 2 / 32);
  EXPECT_TRUE(absl::StrContains(ViolationsOf(with), "hf_router_loss"));
  EXPECT_EQ(ViolationsOf(kMixtral), "");
  const std::string off = With(with.c_str(), "\"router_aux_loss_coef\": 0.02", "\"router_aux_loss_coef\": 0");
  EXPECT_EQ(ViolationsOf(off), "");
  EXPECT_EQ(Read(off).llama().experts().balance_loss(), 0);
  const std::string wrong =
      With(with.c_str(), "\"router_aux_loss_coef\": 0.02", "\"router_aux_loss_coef\": -1");
  EXPECT_EQ(ViolationsOf(wrong),
            "c.json:4:107: error: model.hf_config: router_aux_loss_coef '-1' is not a number of at least 0 "
            "[wrong_type]\n");
  const std::string noise =
      With(kMixtral, R"("vocab_size": 32000)", R"("vocab_size": 32000, "router_jitter_noise": 0.1)");
  EXPECT_TRUE(absl::StrContains(ViolationsOf(noise), "router_jitter_noise"));
}

// transformers' Mixtral class has no such field, but files may contain it.
TEST(HfConfig, IgnoresMixtralBiases) {
  EXPECT_EQ(ViolationsOf(With(kMixtral, "\"vocab_size\"", "\"attention_bias\": true, \"vocab_size\"")), "");
}

// The published file of DeepSeek-V3, except for tokens and types.
TEST(HfConfig, ReadsDeepSeekV3) {
  const v1::Llama llama = Read(kDeepSeekV3).llama();
  EXPECT_EQ(llama.heads(), 128);
  EXPECT_EQ(llama.kv_heads(), 128);
  EXPECT_FALSE(llama.has_head_size());
  EXPECT_EQ(llama.latent_attention().rank(), 512);
  EXPECT_EQ(llama.latent_attention().query_rank(), 1536);
  EXPECT_EQ(llama.latent_attention().plain_head_size(), 128);
  EXPECT_EQ(llama.latent_attention().rotary_head_size(), 64);
  EXPECT_EQ(llama.latent_attention().value_head_size(), 128);
  EXPECT_TRUE(llama.latent_attention().interleaved());
  EXPECT_EQ(llama.experts().count(), 256);
  EXPECT_EQ(llama.experts().per_token(), 8);
  EXPECT_EQ(llama.experts().intermediate_size(), 2048);
  EXPECT_EQ(llama.experts().shared_intermediate_size(), 2048);
  EXPECT_EQ(llama.experts().dense_layers(), 3);
  EXPECT_EQ(llama.experts().groups(), 8);
  EXPECT_EQ(llama.experts().groups_per_token(), 4);
  EXPECT_EQ(llama.experts().weight_scale(), 2.5);
  EXPECT_TRUE(llama.experts().normalized());
  EXPECT_TRUE(llama.experts().selection_bias());
  EXPECT_EQ(llama.rope_scaling().factor(), 40);
  EXPECT_EQ(llama.rope_scaling().low_freq_factor(), 1);
  EXPECT_EQ(llama.rope_scaling().high_freq_factor(), 32);
  EXPECT_EQ(llama.rope_scaling().original_positions(), 4096);
  EXPECT_EQ(llama.rope_scaling().yarn().mscale(), 1);
  EXPECT_EQ(llama.rope_scaling().yarn().mscale_all_dim(), 1);
  EXPECT_FALSE(Read(With(kDeepSeekV3, R"("q_lora_rank": 1536)", R"("q_lora_rank": null)"))
                   .llama()
                   .latent_attention()
                   .has_query_rank());
  const std::string dense =
      With(kDeepSeekV3, R"("first_k_dense_replace": 3)", R"("first_k_dense_replace": 61)");
  EXPECT_FALSE(Read(dense).llama().has_experts());
}

TEST(HfConfig, ReportsUnsupportedFieldsOfDeepSeek) {
  EXPECT_EQ(ViolationsOf(kDeepSeekV3), "");
  const std::string quantized =
      ViolationsOf(With(kDeepSeekV3, R"("moe_layer_freq": 1)",
                        R"("moe_layer_freq": 1, "quantization_config": {"fmt": "e4m3"})"));
  EXPECT_TRUE(absl::StrContains(quantized, "warning: model.hf_config: the weights next to it are quantized"));
  const std::string more =
      ViolationsOf(With(kDeepSeekV3, R"("num_nextn_predict_layers": 0)", R"("num_nextn_predict_layers": 1)"));
  EXPECT_TRUE(absl::StrContains(more, "warning: model.hf_config: multi-token prediction layers"));
  EXPECT_TRUE(absl::StrContains(more, "[hf_more_tokens]"));
  for (const auto& [piece, instead, said] : std::vector<std::tuple<const char*, const char*, const char*>>{
           {"\"sigmoid\"", "\"softmax\"", "scoring_func 'softmax' is not supported; only sigmoid is"},
           {"noaux_tc", "group_limited_greedy", "topk_method 'group_limited_greedy' is not supported"},
           {R"("moe_layer_freq": 1)", R"("moe_layer_freq": 2)", "moe_layer_freq other than 1"},
           {R"("attention_bias": false)", R"("attention_bias": true)", "bias of the attention output"},
           {R"("mscale": 1.0, )", "", "mscale_all_dim without mscale is not supported"},
           {R"("mscale": 1.0)", R"("attention_factor": 2, "mscale": 1.0)",
            "attention_factor is not supported"},
           {R"("beta_fast": 32)", R"("beta_fast": 1)", "beta_fast '1' is not above beta_slow"}}) {
    EXPECT_TRUE(absl::StrContains(ViolationsOf(With(kDeepSeekV3, piece, instead)), said)) << instead;
  }
}

// The published file of DeepSeek-V2, except for tokens and types; and its method without groups.
TEST(HfConfig, ReadsDeepSeekV2) {
  EXPECT_TRUE(absl::StrContains(ViolationsOf(kDeepSeekV2), "[hf_score_scale]"));
  EXPECT_TRUE(absl::StrContains(ViolationsOf(With(kDeepSeekV2, "\"rope_scaling\"", "\"rope_parameters\"")),
                                "[hf_score_scale]"));
  EXPECT_TRUE(absl::StrContains(ViolationsOf(kDeepSeekV2), "experts: {balance_loss: 0.001}"));
  EXPECT_FALSE(Read(With(kDeepSeekV2, R"("n_routed_experts": 160)", R"("n_routed_experts": null)"))
                   .llama()
                   .has_experts());
  const std::string plain =
      With(kDeepSeekV2, R"("mscale": 0.707, "mscale_all_dim": 0.707)", R"("mscale": 1)");
  EXPECT_EQ(ViolationsOf(With(plain.c_str(), R"("aux_loss_alpha": 0.001)", R"("aux_loss_alpha": 0)")), "");
  const v1::Llama llama = Read(kDeepSeekV2).llama();
  EXPECT_EQ(llama.latent_attention().query_rank(), 1536);
  EXPECT_TRUE(llama.latent_attention().interleaved());
  const v1::Llama::Experts& experts = llama.experts();
  EXPECT_EQ(experts.count(), 160);
  EXPECT_EQ(experts.per_token(), 6);
  EXPECT_EQ(experts.intermediate_size(), 1536);
  EXPECT_EQ(experts.shared_intermediate_size(), 3072);
  EXPECT_EQ(experts.dense_layers(), 1);
  EXPECT_EQ(experts.groups(), 8);
  EXPECT_EQ(experts.groups_per_token(), 3);
  EXPECT_EQ(experts.group_scores(), v1::Llama::Experts::GROUP_SCORES_BEST);
  EXPECT_EQ(experts.weight_scale(), 16);
  EXPECT_NE(experts.scores(), v1::Llama::Experts::SCORES_SIGMOID);
  EXPECT_FALSE(experts.normalized() || experts.selection_bias());
  const v1::Llama greedy = Read(With(kDeepSeekV2, "group_limited_greedy", "greedy")).llama();
  EXPECT_FALSE(greedy.experts().has_groups() || greedy.experts().has_groups_per_token());
  for (const auto& [piece, instead, said] : std::vector<std::tuple<const char*, const char*, const char*>>{
           {"\"softmax\"", "\"sigmoid\"", "scoring_func 'sigmoid' is not supported; only softmax is"},
           {"group_limited_greedy", "noaux_tc", "topk_method 'noaux_tc' is not supported"},
           {R"("norm_topk_prob": false)", R"("norm_topk_prob": true)", "normalization of routing weights"}}) {
    EXPECT_TRUE(absl::StrContains(ViolationsOf(With(kDeepSeekV2, piece, instead)), said)) << instead;
  }
}

TEST(HfConfig, ReadsGpt2) {
  const v1::Model model = Read(kGpt2);
  ASSERT_TRUE(model.has_gpt2());
  EXPECT_EQ(model.gpt2().vocab_size(), 50257);
  EXPECT_EQ(model.gpt2().hidden_size(), 768);
  EXPECT_EQ(model.gpt2().layers(), 12);
  EXPECT_EQ(model.gpt2().heads(), 12);
  EXPECT_EQ(model.gpt2().positions(), 1024);
  EXPECT_EQ(model.gpt2().intermediate_size(), 3072);
  EXPECT_EQ(model.gpt2().norm_epsilon(), 1e-5);
  EXPECT_FALSE(model.gpt2().untied_embeddings());
  const v1::Model wide =
      Read(With(kGpt2, "\"n_ctx\": 1024", "\"n_inner\": 1000, \"tie_word_embeddings\": false"));
  EXPECT_EQ(wide.gpt2().intermediate_size(), 1000);
  EXPECT_TRUE(wide.gpt2().untied_embeddings());
}

TEST(HfConfig, AppliesDefaultsOfFamily) {
  const auto of = [](const char* type) {
    return Read(absl::StrCat(
                    R"({"vocab_size": 8, "hidden_size": 640, "intermediate_size": 4, "sliding_window": null,
                                 "num_hidden_layers": 1, "num_attention_heads": 64, "model_type": ")",
                    type, "\"}"))
        .llama();
  };
  EXPECT_EQ(of("llama").kv_heads(), 64);
  EXPECT_EQ(of("mistral").kv_heads(), 8);
  EXPECT_EQ(of("qwen2").kv_heads(), 32);
  EXPECT_EQ(of("llama").head_size(), 10);
  EXPECT_EQ(of("qwen3").head_size(), 128);
  EXPECT_EQ(of("llama").rope_theta(), 10000);
  EXPECT_EQ(of("llama").norm_epsilon(), 1e-6);
  EXPECT_EQ(
      Read(With(kQwen3, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": null")).llama().kv_heads(),
      32);
}

TEST(HfConfig, NamesSupportedArchitectures) {
  EXPECT_EQ(ViolationsWith("\"model_type\": \"llama\"", "\"model_type\": \"qwen3_next\""),
            "c.json:9:3: error: model.hf_config: model_type 'qwen3_next' is not supported; supported: llama, "
            "mistral, "
            "qwen2, qwen3, mixtral, qwen3_moe, dots1, deepseek_v2, deepseek_v3, gpt2 [hf_not_supported]\n");
  EXPECT_EQ(
      ViolationsWith("LlamaForCausalLM", "LlamaForSequenceClassification"),
      "c.json:2:3: error: model.hf_config: a list of architectures without LlamaForCausalLM is not supported "
      "[hf_not_supported]\n");
  EXPECT_EQ(
      ViolationsWith("[\"LlamaForCausalLM\"]", "\"LlamaForCausalLM\""),
      "c.json:2:20: error: model.hf_config: architectures 'LlamaForCausalLM' is not a list [wrong_type]\n");
}

TEST(HfConfig, RejectsUnsupportedFields) {
  EXPECT_EQ(ViolationsWith("\"attention_bias\": false", "\"attention_bias\": true"),
            "c.json:3:3: error: model.hf_config: attention_bias true: bias of the attention output "
            "projection is not supported [hf_not_supported]\n");
  EXPECT_EQ(
      ViolationsWith("\"attention_bias\": false", "\"mlp_bias\": true"),
      "c.json:3:3: error: model.hf_config: mlp_bias true: bias of the feed-forward layer is not supported "
      "[hf_not_supported]\n");
  EXPECT_EQ(ViolationsWith("\"silu\"", "\"gelu\""),
            "c.json:6:3: error: model.hf_config: hidden_act 'gelu' is not supported; only silu is supported "
            "[hf_not_supported]\n");
  EXPECT_EQ(
      ViolationsWith("\"rope_scaling\": null", R"("rope_scaling": {"type": "linear", "factor": 4})"),
      "c.json:14:3: error: model.hf_config: rope_scaling of type 'linear' is not supported; only default, "
      "llama3 and yarn are supported [hf_not_supported]\n");
  for (const auto& [piece, instead] : std::vector<std::pair<std::string, std::string>>{
           {"\"gelu_new\"", "\"relu\""},
           {"\"scale_attn_weights\": true", "\"scale_attn_weights\": false"},
           {"\"n_ctx\": 1024", "\"scale_attn_by_inverse_layer_idx\": true"},
           {"\"n_ctx\": 1024", "\"add_cross_attention\": true"}}) {
    EXPECT_TRUE(absl::StrContains(ViolationsOf(With(kGpt2, piece, instead)), "[hf_not_supported]"))
        << instead;
  }
}

TEST(HfConfig, RejectsShortSlidingWindow) {
  const std::string fault =
      ViolationsOf(With(kMistral, "\"sliding_window\": null", "\"sliding_window\": 4096"));
  EXPECT_EQ(
      fault,
      "c.json:5:28: error: model.hf_config: sliding_window 4096, less than max_position_embeddings 131072 "
      "(sliding-window attention) is not supported; write null if no sequence is longer than the window "
      "[hf_not_supported]\n");
  // mistral's class defaults to 4096.
  EXPECT_TRUE(absl::StartsWith(ViolationsOf(With(kMistral, "\"sliding_window\": null,", "")),
                               "c.json:1:1: error: model.hf_config: sliding_window 4096, less than"));
  EXPECT_EQ(ViolationsOf(With(kMistral, "\"sliding_window\": null", "\"sliding_window\": 131072")), "");
  const char* off = "\"use_sliding_window\": false";
  const char* on = "\"use_sliding_window\": true";
  EXPECT_TRUE(absl::StrContains(ViolationsOf(With(kQwen2, off, on)), "sliding_window 4096, less than"));
  const std::string layers = With(kQwen2, "\"max_window_layers\": 21", "\"max_window_layers\": 24");
  EXPECT_EQ(ViolationsOf(With(layers.c_str(), off, on)), "");  // Layers 24 and up, of 24.
  const std::string none = With(kQwen2, "\"max_window_layers\": 21", "\"max_window_layers\": 0");
  EXPECT_TRUE(absl::StrContains(ViolationsOf(With(none.c_str(), off, on)), "sliding_window 4096, less than"));
  const char* types = R"("layer_types": ["full_attention", "sliding_attention"])";
  EXPECT_TRUE(absl::StrContains(ViolationsOf(With(kQwen3, off, types)), "layer type 'sliding_attention'"));
  EXPECT_TRUE(absl::StrContains(ViolationsOf(With(kQwen3, off, types)), "has 2 entries for 36 layers"));
}

TEST(HfConfig, ReportsAllViolations) {
  EXPECT_EQ(
      ViolationsWith("\"hidden_size\": 4096", "\"hidden_size\": \"wide\", \"rms_norm_eps\": 1"),
      "c.json:13:3: error: model.hf_config: rms_norm_eps is written twice; keep one [duplicate_field]\n"
      "c.json:7:18: error: model.hf_config: hidden_size 'wide' is not a positive integer [wrong_type]\n");
  EXPECT_EQ(ViolationsWith("\"vocab_size\"", "\"vocab\""),
            "c.json:1:1: error: model.hf_config: has no vocab_size [hf_no_config]\n");
  EXPECT_EQ(
      ViolationsWith("\"rope_scaling\": null", R"("rope_scaling": {"rope_type": "llama3", "factor": 0.5,
"low_freq_factor": 4, "high_freq_factor": [1], "original_max_position_embeddings": "8192"})"),
      "c.json:15:43: error: model.hf_config: rope_scaling.high_freq_factor (a list) is not a positive number "
      "[wrong_type]\n"
      "c.json:15:84: error: model.hf_config: rope_scaling.original_max_position_embeddings '8192' is not a "
      "positive integer [wrong_type]\n");
  EXPECT_EQ(ViolationsWith("\"rope_scaling\": null", R"("rope_scaling": {"rope_type": "llama3", "factor": 0.5,
"low_freq_factor": 4, "high_freq_factor": 4, "original_max_position_embeddings": 8192})"),
            "c.json:14:53: error: model.hf_config: rope_scaling.factor '0.5' is less than 1 [wrong_type]\n"
            "c.json:15:43: error: model.hf_config: rope_scaling.high_freq_factor '4' is not above "
            "low_freq_factor [wrong_type]\n");
  EXPECT_EQ(ViolationsWith("\"rope_scaling\": null", R"("rope_scaling": {"rope_type": "llama3", "factor": 8,
"low_freq_factor": 1, "high_freq_factor": 4})"),
            "c.json:14:19: error: model.hf_config: has no rope_scaling.original_max_position_embeddings "
            "[hf_no_config]\n");
  EXPECT_EQ(
      ViolationsWith("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0"),
      "c.json:16:26: error: model.hf_config: tie_word_embeddings '0' is not true or false [wrong_type]\n");
}

TEST(HfConfig, RejectsInvalidFile) {
  EXPECT_EQ(ViolationsWith("{\n", "[").substr(0, 7), "c.json:");
  EXPECT_EQ(
      ViolationsOf("[]"),
      "c.json:1:1: error: model.hf_config: is not a config.json; use the config.json next to the weights "
      "[hf_no_config]\n");
  EXPECT_EQ(ViolationsOf("{}"),
            "c.json:1:1: error: model.hf_config: has no model_type; use the config.json next to the weights "
            "[hf_no_config]\n");
}

// Regression test: dropout was ignored silently.
TEST(HfConfig, WarnsOfDropout) {
  EXPECT_EQ(ViolationsOf(kLlama), "");
  EXPECT_EQ(ViolationsWith("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.2"),
            "c.json:4:3: warning: model.hf_config: dropout is not supported and is ignored: "
            "attention_dropout 0.2; write 0.0 in the file to confirm [hf_dropout]\n");
  EXPECT_EQ(ViolationsOf(With(kGpt2, "\"n_ctx\": 1024", "\"embd_pdrop\": 0.0")),
            "c.json:2:76: warning: model.hf_config: dropout is not supported and is ignored: "
            "attn_pdrop 0.1, resid_pdrop 0.1; write 0.0 in the file to confirm [hf_dropout]\n")
      << "the family's own where the file says nothing";
}

TEST(HfConfig, ReadsMaximumSequenceLength) {
  EXPECT_EQ(Read(kMistral).llama().positions(), 131072);
  EXPECT_FALSE(Read(kLlama).llama().has_positions());
}

// Regression test: a truncated file was reported as a field that is a group of fields.
TEST(HfConfig, ReportsTruncatedFile) {
  const std::string whole(kLlama);
  for (size_t size = 1; size + 1 < whole.size(); ++size) {
    EXPECT_TRUE(absl::StrContains(ViolationsOf(whole.substr(0, size)),
                                  "unexpected end of file: 1 bracket is still open") ||
                absl::StrContains(ViolationsOf(whole.substr(0, size)), "2 brackets are still open"))
        << size << ": " << ViolationsOf(whole.substr(0, size));
  }
}

}  // namespace
}  // namespace fsdpd
