// Round trips through fsdp/checkpoint/hf/hf_config.h, with equal sizes.
#include "fsdp/checkpoint/hf/hf_config_text.h"

#include <gtest/gtest.h>

#include "fsdp/checkpoint/hf/hf_config.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

v1::Model Read(const std::string& text) {
  v1::Model model;
  const LocatedViolations violations = ReadHfConfig(text, "config.json", &model);
  EXPECT_TRUE(violations.empty()) << Render(violations[0]);
  return model;
}

LlamaConfig SomeLlama() {
  LlamaConfig llama = SmallLlama();
  llama.layers = 3;
  llama.head_size = 6;
  llama.rope_theta = 1234567.5;
  llama.norm_epsilon = 1e-6;
  llama.positions = 4096;
  return llama;
}

void ExpectReturns(const LlamaConfig& llama) {
  const auto text = MakeHfConfig(llama, "bfloat16", 0.02);
  ASSERT_TRUE(text.ok()) << text.status();
  const ModelConfig back = ToModelConfig(Read(*text));
  const auto& read = std::get<LlamaConfig>(back);
  EXPECT_EQ(read.vocab_size, llama.vocab_size);
  EXPECT_EQ(read.hidden_size, llama.hidden_size);
  EXPECT_EQ(read.intermediate_size, llama.intermediate_size);
  EXPECT_EQ(read.layers, llama.layers);
  EXPECT_EQ(read.heads, llama.heads);
  EXPECT_EQ(read.kv_heads, llama.kv_heads);
  EXPECT_EQ(read.head_size, llama.head_size);
  EXPECT_EQ(read.rope_theta, llama.rope_theta);
  EXPECT_EQ(read.norm_epsilon, llama.norm_epsilon);
  EXPECT_EQ(read.positions, llama.positions);
  EXPECT_EQ(read.tied_embeddings, llama.tied_embeddings);
  EXPECT_EQ(read.qk_norm, llama.qk_norm);
  EXPECT_EQ(read.attention_bias, llama.attention_bias);
  EXPECT_EQ(read.rope_scaling.factor, llama.rope_scaling.factor);
  EXPECT_EQ(read.rope_scaling.original_positions, llama.rope_scaling.original_positions);
  EXPECT_EQ(read.rope_scaling.low_freq_factor, llama.rope_scaling.low_freq_factor);
  EXPECT_EQ(read.rope_scaling.high_freq_factor, llama.rope_scaling.high_freq_factor);
  EXPECT_EQ(read.rope_scaling.yarn, llama.rope_scaling.yarn);
  EXPECT_EQ(read.rope_scaling.mscale, llama.rope_scaling.mscale);
  EXPECT_EQ(read.rope_scaling.mscale_all_dim, llama.rope_scaling.mscale_all_dim);
  EXPECT_EQ(read.latent.rank, llama.latent.rank);
  EXPECT_EQ(read.latent.query_rank, llama.latent.query_rank);
  EXPECT_EQ(read.latent.plain_head_size, llama.latent.plain_head_size);
  EXPECT_EQ(read.latent.rotary_head_size, llama.latent.rotary_head_size);
  EXPECT_EQ(read.latent.value_head_size, llama.latent.value_head_size);
  EXPECT_EQ(read.latent.interleaved, llama.latent.interleaved);
  EXPECT_EQ(read.experts.count, llama.experts.count);
  EXPECT_EQ(read.experts.per_token, llama.experts.per_token);
  EXPECT_EQ(read.experts.intermediate_size, llama.experts.intermediate_size);
  EXPECT_EQ(read.experts.normalized, llama.experts.normalized);
  EXPECT_EQ(read.experts.dense_layers, llama.experts.dense_layers);
  EXPECT_EQ(read.experts.sigmoid, llama.experts.sigmoid);
  EXPECT_EQ(read.experts.selection_bias, llama.experts.selection_bias);
  EXPECT_EQ(read.experts.groups, llama.experts.groups);
  EXPECT_EQ(read.experts.groups_per_token, llama.experts.groups_per_token);
  EXPECT_EQ(read.experts.groups_by_best, llama.experts.groups_by_best);
  EXPECT_EQ(read.experts.weight_scale, llama.experts.weight_scale);
  EXPECT_EQ(read.experts.shared_intermediate_size, llama.experts.shared_intermediate_size);
}

TEST(HfConfigText, RoundTripsLlamaFamilies) {
  LlamaConfig llama = SomeLlama();
  ExpectReturns(llama);
  llama.rope_scaling.factor = 8;
  llama.rope_scaling.original_positions = 512;
  ExpectReturns(llama);
  llama.attention_bias = true;
  ExpectReturns(llama);
  llama.attention_bias = false;
  llama.qk_norm = llama.tied_embeddings = true;
  ExpectReturns(llama);
  llama.attention_bias = true;
  EXPECT_FALSE(MakeHfConfig(llama, "bfloat16", 0.02).ok()) << "no family has both";
}

TEST(HfConfigText, RoundTripsExperts) {
  for (LlamaConfig llama : {SmallMixtral(), SmallQwen3Moe(), SmallDots1()}) {
    llama.head_size = 6;
    ExpectReturns(llama);
    llama.experts.per_token = 1;
    ExpectReturns(llama);
  }
  LlamaConfig llama = SmallMixtral();
  llama.experts.normalized = false;
  EXPECT_FALSE(MakeHfConfig(llama, "bfloat16", 0.02).ok()) << "Mixtral's are";
}

TEST(HfConfigText, RoundTripsLatentAttention) {
  LlamaConfig llama = SmallDeepSeek();
  ExpectReturns(llama);
  llama.rope_scaling = {40, 1, 32, 4096, /*yarn=*/true, /*mscale=*/0.7, /*mscale_all_dim=*/1.2};
  ExpectReturns(llama);
  llama.rope_scaling.mscale = 1;
  llama.rope_scaling.mscale_all_dim = 0;
  llama.latent.query_rank = 0;
  llama.latent.interleaved = false;
  ExpectReturns(llama);
  llama.experts.sigmoid = false;
  EXPECT_FALSE(MakeHfConfig(llama, "bfloat16", 0.02).ok()) << "DeepSeek-V3's are";
  llama.experts.selection_bias = llama.experts.normalized = false;
  llama.experts.groups_by_best = true;
  EXPECT_FALSE(MakeHfConfig(llama, "bfloat16", 0.02).ok()) << "DeepSeek-V2's rotation is of neighbors";
  llama.latent.interleaved = true;
  ExpectReturns(llama);
  llama.experts.groups_by_best = false;
  EXPECT_FALSE(MakeHfConfig(llama, "bfloat16", 0.02).ok()) << "DeepSeek-V2's groups are";
  llama.experts.groups = llama.experts.groups_per_token = 1;
  ExpectReturns(llama);
  llama.experts = {};
  ExpectReturns(llama);
}

TEST(HfConfigText, RoundTripsGpt2) {
  Gpt2Config gpt2 = SmallGpt2();
  gpt2.layers = 3;
  gpt2.intermediate_size = 24;
  gpt2.tied_embeddings = false;
  const auto text = MakeHfConfig(gpt2, "float32", 0.02);
  ASSERT_TRUE(text.ok()) << text.status();
  const ModelConfig back = ToModelConfig(Read(*text));
  const auto& read = std::get<Gpt2Config>(back);
  EXPECT_EQ(read.vocab_size, 32);
  EXPECT_EQ(read.hidden_size, 8);
  EXPECT_EQ(read.intermediate_size, 24);
  EXPECT_EQ(read.layers, 3);
  EXPECT_EQ(read.heads, 2);
  EXPECT_EQ(read.positions, 16);
  EXPECT_EQ(read.norm_epsilon, 1e-5);
  EXPECT_FALSE(read.tied_embeddings);
}

// Regression test: it was omitted, and readers used the default of 0.02.
TEST(HfConfigText, RoundTripsInitialDeviation) {
  for (const ModelConfig& config : {ModelConfig(SomeLlama()), ModelConfig(SmallGpt2())}) {
    const auto text = MakeHfConfig(config, "float32", 0.05);
    ASSERT_TRUE(text.ok()) << text.status();
    v1::Model model;
    double deviation = 0;
    EXPECT_TRUE(ReadHfConfig(*text, "config.json", &model, nullptr, &deviation).empty());
    EXPECT_EQ(deviation, 0.05);
  }
}

TEST(HfConfigText, RewriteKeepsFieldsInOrder) {
  const auto text = RewriteHfConfig(
      R"({"b": [1, -2.5e-07, true, null, "1", {}, []], "a": {"x": "é \" \n"}, "dtype": "float32", "z": "true"})",
      "bfloat16");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(
      *text,
      "{\n  \"b\": [\n    1,\n    -2.5e-07,\n    true,\n    null,\n    \"1\",\n    {},\n    []\n  ],\n"
      "  \"a\": {\n    \"x\": \"é \\\" \\n\"\n  },\n  \"dtype\": \"bfloat16\",\n  \"z\": \"true\"\n}\n");
  EXPECT_EQ(*RewriteHfConfig("{}", "float16"), "{\n  \"torch_dtype\": \"float16\"\n}\n");
  EXPECT_FALSE(RewriteHfConfig("[1]", "float16").ok());
}

}  // namespace
}  // namespace fsdpd
