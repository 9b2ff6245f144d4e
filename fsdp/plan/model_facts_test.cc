#include "fsdp/plan/model_facts.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

ModelFacts Describe(const char* preset, int64_t micro_batch = 1, int64_t sequence = 128,
                    DType compute = DType::kBf16) {
  return DescribeLlama(*FindPreset(preset), micro_batch, sequence, compute);
}

// The published sizes; llama3-1b has its output matrix of its own here.
TEST(ModelFacts, CountsParametersExactly) {
  EXPECT_EQ(Describe("llama3-8b").elements(), 8030261248);
  EXPECT_EQ(Describe("llama3-70b").elements(), 70553706496);
  EXPECT_EQ(Describe("llama3-1b").elements(), 1235814400 + int64_t{128256} * 2048);
}

TEST(ModelFacts, NamesUnitsAndParametersInOrder) {
  const ModelFacts facts = Describe("tiny");
  ASSERT_EQ(facts.units.size(), 6u);
  EXPECT_EQ(facts.units.front().name, "embedding");
  EXPECT_EQ(facts.units[1].name, "layer.0");
  EXPECT_EQ(facts.units[4].name, "layer.3");
  EXPECT_EQ(facts.units.back().name, "head");
  std::vector<std::string> names;
  for (const ParamFacts& param : facts.units[1].params) names.push_back(param.name);
  EXPECT_EQ(names, (std::vector<std::string>{"attention_norm", "attention.wq", "attention.wk", "attention.wv",
                                             "attention.wo", "ffn_norm", "ffn.w1", "ffn.w3", "ffn.w2"}));
  EXPECT_EQ(facts.units[1].params[2].shape, (std::vector<int64_t>{64, 128}));
}

TEST(ModelFacts, DecaysMatricesOnly) {
  for (const UnitFacts& unit : Describe("tiny").units) {
    for (const ParamFacts& param : unit.params) EXPECT_EQ(param.decay, param.shape.size() == 2) << param.name;
  }
}

TEST(ModelFacts, ActivationsScaleWithTokensAndPrecision) {
  const ModelFacts one = Describe("llama3-8b", 1, 1024);
  const ModelFacts two = Describe("llama3-8b", 2, 1024);
  const ModelFacts fp32 = Describe("llama3-8b", 1, 1024, DType::kFp32);
  for (size_t u = 0; u < one.units.size(); ++u) {
    EXPECT_EQ(two.units[u].activation_bytes, 2 * one.units[u].activation_bytes);
    EXPECT_GE(fp32.units[u].activation_bytes, one.units[u].activation_bytes);
    EXPECT_GE(one.units[u].activation_bytes, one.units[u].input_bytes);
  }
  // Korthikanti et al. count 34 bytes per token and hidden element for a GPT block; SwiGLU's wider layer
  // adds.
  const double per_element = static_cast<double>(one.units[1].activation_bytes) / (1024.0 * 4096);
  EXPECT_GT(per_element, 25);
  EXPECT_LT(per_element, 60);
}

TEST(ModelFacts, CountsCausalAttentionHalf) {
  const UnitFacts layer = Describe("llama3-8b", 1, 8192).units[1];
  const double tokens = 8192, matrices = static_cast<double>(layer.elements() - 2 * 4096);
  EXPECT_DOUBLE_EQ(layer.forward_flops, 2 * tokens * matrices + 4 * tokens * tokens * 4096 / 2);
}

}  // namespace
}  // namespace fsdpd
