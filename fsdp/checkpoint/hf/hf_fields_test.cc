#include "fsdp/checkpoint/hf/hf_fields.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "fsdp/checkpoint/hf/hf_config.h"

namespace fsdpd {
namespace {

// Violations of a small llama with these additional fields, one per line.
std::string ViolationsWith(const std::string& fields) {
  const std::string text = absl::StrCat(
      R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
"num_hidden_layers": 2, "num_attention_heads": 4)",
      fields.empty() ? "" : ",\n", fields, "}");
  v1::Model model;
  std::string violations;
  for (const LocatedViolation& located : ReadHfConfig(text, "c.json", &model))
    violations += Render(located) + "\n";
  return violations;
}

TEST(HfFields, RejectsFieldsThatScaleOrCap) {
  EXPECT_EQ(ViolationsWith(R"("embedding_multiplier": 12.0)"),
            "c.json:3:1: error: model.hf_config: embedding_multiplier 12.0: scaling of embeddings is not "
            "supported [hf_not_supported]\n");
  for (const char* field :
       {R"("logits_scaling": 8.0)", R"("residual_multiplier": 0.22)", R"("attention_multiplier": 0.0078125)",
        R"("final_logit_softcapping": 30.0)", R"("attn_logit_softcapping": 50.0)", R"("logit_scale": 0.0625)",
        R"("query_pre_attn_scalar": 256)", R"("clip_qkv": 8)", R"("num_local_experts": 8)",
        R"("qk_norm": true)", R"("no_rope_layers": [1, 0])", R"("pruned_heads": {"0": [1]})"}) {
    EXPECT_TRUE(absl::StrContains(ViolationsWith(field), "is not supported [hf_not_supported]")) << field;
  }
}

TEST(HfFields, AcceptsNeutralValues) {
  EXPECT_EQ(ViolationsWith(""), "");
  EXPECT_EQ(
      ViolationsWith(R"("embedding_multiplier": 1.0, "logits_scaling": 1, "final_logit_softcapping": null,
    "qk_norm": false, "num_local_experts": 0, "pruned_heads": {}, "brand_new": null)"),
      "");
  EXPECT_EQ(ViolationsWith(R"("bos_token_id": 1, "torch_dtype": "bfloat16", "use_cache": true, "top_p": 0.9,
    "_name_or_path": "x", "id2label": {"0": "a"}, "pretraining_tp": 1, "auto_map": {"AutoModel": "m.M"})"),
            "");
}

// As in the published files of Qwen3-Coder and Qwen2.5.
TEST(HfFields, AcceptsFieldsImpliedByFamily) {
  const auto violations = [](const char* type, const char* field) {
    v1::Model model;
    std::string told;
    const std::string text = absl::StrCat(
        R"({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "model_type": ")",
        type, "\", ", field, "}");
    for (const LocatedViolation& located : ReadHfConfig(text, "c.json", &model))
      told += Render(located) + "\n";
    return told;
  };
  EXPECT_EQ(violations("qwen3", R"("use_qk_norm": true, "shared_expert_intermediate_size": 0)"), "");
  EXPECT_EQ(violations("qwen2", R"("use_mrope": false, "qkv_bias": true)"), "");
  EXPECT_TRUE(absl::StrContains(violations("qwen2", R"("use_qk_norm": true)"), "hf_not_supported"));
}

TEST(HfFields, WarnsOfUnknownFields) {
  EXPECT_EQ(ViolationsWith("\"brand_new\": 3, \"top_k\": 5,\n\"another\": false"),
            "c.json:3:1: warning: model.hf_config: 2 fields are unknown and ignored: brand_new, another; "
            "check whether the model computes with them [hf_not_known]\n");
}

// Each is read for another kind of scaling, or at the top level.
TEST(HfFields, ChecksRotaryFields) {
  EXPECT_TRUE(absl::StrContains(
      ViolationsWith(R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})"),
      "partial_rotary_factor 0.5: partial rotary embedding is not supported"));
  const std::string llama3 =
      R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
         "original_max_position_embeddings": 8192)";
  EXPECT_EQ(ViolationsWith(absl::StrCat(R"("rope_scaling": {)", llama3, "}")), "");
  EXPECT_TRUE(absl::StrContains(
      ViolationsWith(absl::StrCat(R"("rope_scaling": {)", llama3, R"(, "long_factor": [1]})")),
      "1 field is unknown and ignored: long_factor"));
  EXPECT_TRUE(absl::StrContains(
      ViolationsWith(absl::StrCat(R"("rope_scaling": {)", llama3, R"(, "attention_factor": 1.2})")),
      "attention_factor 1.2: scaling of the rotary embedding is not supported"));
}

TEST(HfFields, ReturnsInitializerRange) {
  const auto range = [](const std::string& field) {
    v1::Model model;
    double read = 0;
    const std::string text = absl::StrCat(
        R"({"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 8)",
        field, "}");
    for (const LocatedViolation& located : ReadHfConfig(text, "c.json", &model, nullptr, &read))
      EXPECT_NE(located.violation.level, ViolationLevel::kError) << Render(located);
    return read;
  };
  EXPECT_EQ(range(""), 0.02);
  EXPECT_EQ(range(R"(, "initializer_range": 0.041)"), 0.041);
}

}  // namespace
}  // namespace fsdpd
