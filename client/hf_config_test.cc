#include "client/hf_config.h"

#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>

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

// The faults of the good file with one piece of text exchanged.
std::string FaultsWith(const std::string& piece, const std::string& instead) {
  v1::Llama llama;
  std::string text;
  for (const SpecFault& fault :
       ReadHfConfig(absl::StrReplaceAll(kLlama, {{piece, instead}}), "c.json", &llama)) {
    text += Render(fault) + "\n";
  }
  return text;
}

TEST(HfConfig, ReadsLlama3) {
  v1::Llama llama;
  ASSERT_TRUE(ReadHfConfig(kLlama, "c.json", &llama).empty());
  EXPECT_EQ(llama.vocab_size(), 128256);
  EXPECT_EQ(llama.hidden_size(), 4096);
  EXPECT_EQ(llama.intermediate_size(), 14336);
  EXPECT_EQ(llama.layers(), 32);
  EXPECT_EQ(llama.heads(), 32);
  EXPECT_EQ(llama.kv_heads(), 8);
  EXPECT_EQ(llama.rope_theta(), 500000);
  EXPECT_EQ(llama.norm_epsilon(), 1e-5);
  EXPECT_FALSE(llama.tied_embeddings());
}

TEST(HfConfig, TakesTiedEmbeddingsOver) {
  v1::Llama llama;
  const std::string text =
      absl::StrReplaceAll(kLlama, {{"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"}});
  ASSERT_TRUE(ReadHfConfig(text, "c.json", &llama).empty());
  EXPECT_TRUE(llama.tied_embeddings());
}

TEST(HfConfig, FillsTheFamilysOwnDefaults) {
  v1::Llama llama;
  ASSERT_TRUE(
      ReadHfConfig(R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4,
                               "num_hidden_layers": 1, "num_attention_heads": 2})",
                   "c.json", &llama)
          .empty());
  EXPECT_EQ(llama.kv_heads(), 2);
  EXPECT_EQ(llama.rope_theta(), 10000);
  EXPECT_EQ(llama.norm_epsilon(), 1e-6);
}

TEST(HfConfig, ReadsRopeParametersOfNewerFiles) {
  v1::Llama llama;
  const std::string text = absl::StrReplaceAll(
      kLlama, {{"\"rope_theta\": 500000.0",
                "\"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}"}});
  ASSERT_TRUE(ReadHfConfig(text, "c.json", &llama).empty());
  EXPECT_EQ(llama.rope_theta(), 1e6);
}

TEST(HfConfig, RefusesWhatWouldBeAnotherModel) {
  EXPECT_EQ(FaultsWith("\"model_type\": \"llama\"", "\"model_type\": \"qwen2\""),
            "c.json:9:3: error: model.hf_config: model_type 'qwen2' (only llama is) is not supported yet "
            "[hf_not_supported]\n");
  EXPECT_EQ(
      FaultsWith("LlamaForCausalLM", "LlamaForSequenceClassification"),
      "c.json:2:3: error: model.hf_config: an architecture other than LlamaForCausalLM is not supported yet "
      "[hf_not_supported]\n");
  EXPECT_EQ(FaultsWith("\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"llama3\"}"),
            "c.json:14:3: error: model.hf_config: rope_scaling is not supported yet [hf_not_supported]\n");
  EXPECT_EQ(FaultsWith("\"attention_bias\": false", "\"attention_bias\": true"),
            "c.json:3:3: error: model.hf_config: attention_bias is not supported yet [hf_not_supported]\n");
  EXPECT_EQ(
      FaultsWith("\"attention_dropout\": 0.0", "\"head_dim\": 64"),
      "c.json:4:3: error: model.hf_config: a head_dim other than hidden_size / num_attention_heads is not "
      "supported yet [hf_not_supported]\n");
}

TEST(HfConfig, NamesEveryFaultOfTheFile) {
  EXPECT_EQ(FaultsWith("\"hidden_size\": 4096", "\"hidden_size\": \"wide\", \"rms_norm_eps\": 1"),
            "c.json:13:3: error: model.hf_config: rms_norm_eps is written twice; keep one [duplicate_field]\n"
            "c.json:7:18: error: model.hf_config: hidden_size 'wide' is not a size [wrong_type]\n");
  EXPECT_EQ(FaultsWith("\"vocab_size\"", "\"vocab\""),
            "c.json:1:1: error: model.hf_config: has no vocab_size [hf_no_config]\n");
  EXPECT_EQ(FaultsWith("{\n", "[").substr(0, 7), "c.json:");
  EXPECT_EQ(
      FaultsWith(kLlama, "[]"),
      "c.json:1:1: error: model.hf_config: is not a config.json; give the file that lies beside the weights "
      "[hf_no_config]\n");
}

}  // namespace
}  // namespace fsdpd
