#include "fsdp/plan/model/fp8_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace fsdpd {
namespace {

Spec SpecOf(const char* preset) {
  Spec spec;
  spec.model = *FindPreset(preset);
  spec.data.sequence_length = 8192;
  spec.precision.compute = DType::kBf16;
  spec.precision.fp8 = true;
  spec.device = DeviceKind::kCuda;
  return spec;
}

std::set<std::string> Fp8Names(const UnitFacts& unit) {
  std::set<std::string> names;
  for (const ParamFacts& param : unit.params) {
    if (param.fp8) names.insert(param.name);
  }
  return names;
}

const std::set<std::string> kAll = {"attention.wq", "attention.wk", "attention.wv", "attention.wo",
                                    "ffn.w1",       "ffn.w3",       "ffn.w2"};

TEST(Fp8Facts, AllMatricesOfLayersAreInFp8AndNothingElse) {
  const ModelFacts facts = DescribeSpec(SpecOf("llama3-8b"));
  EXPECT_TRUE(Fp8Names(facts.units.front()).empty());
  EXPECT_TRUE(Fp8Names(facts.units.back()).empty());
  for (size_t u = 1; u + 1 < facts.units.size(); ++u) {
    EXPECT_EQ(Fp8Names(facts.units[u]), kAll);
    EXPECT_EQ(facts.units[u].fp8_flops, facts.units[u].forward_flops - facts.units[u].attention_flops);
  }
}

TEST(Fp8Facts, AMatrixThatIsKeptKeepsThoseOfItsProduct) {
  Spec spec = SpecOf("llama3-8b");
  spec.precision.keep_bf16 = {"layer.0.*", "*.attention.wk", "layer.2.ffn.w3", "layer.3.ffn.w2"};
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_TRUE(Fp8Names(facts.units[1]).empty());
  EXPECT_EQ(facts.units[1].fp8_flops, 0);
  EXPECT_EQ(Fp8Names(facts.units[2]), (std::set<std::string>{"attention.wo", "ffn.w1", "ffn.w3", "ffn.w2"}));
  EXPECT_EQ(Fp8Names(facts.units[3]), (std::set<std::string>{"attention.wo", "ffn.w2"}));
  EXPECT_EQ(Fp8Names(facts.units[4]), (std::set<std::string>{"attention.wo", "ffn.w1", "ffn.w3"}));
}

TEST(Fp8Facts, InLayersWithExpertsOnlyAttentionIs) {
  Spec spec = SpecOf("tiny");
  ExpertsConfig& experts = std::get<LlamaConfig>(spec.model).experts;
  experts.count = 8;
  experts.per_token = 2;
  experts.intermediate_size = 64;
  experts.shared_intermediate_size = 64;
  EXPECT_EQ(Fp8Names(DescribeSpec(spec).units[1]),
            (std::set<std::string>{"attention.wq", "attention.wk", "attention.wv", "attention.wo"}));
}

// Llama 8B's layer, 8192 tokens: 69,632 columns of tokens and 218 million weights.
TEST(Fp8Facts, WhatIsRoundedMovesAndTakesRoom) {
  Spec spec = SpecOf("llama3-8b");
  const UnitFacts fp8 = DescribeSpec(spec).units[1];
  spec.precision.fp8 = false;
  const UnitFacts bf16 = DescribeSpec(spec).units[1];
  constexpr int64_t kTokens = 8192, kInputs = 4096 * 3 + 14336, kOutputs = 6144 + 4096 + 28672 + 4096;
  constexpr int64_t kMatrices = 218'103'808;
  EXPECT_EQ(fp8.forward_bytes - bf16.forward_bytes, 3 * (kTokens * kInputs + kMatrices));
  EXPECT_EQ(fp8.backward_bytes - bf16.backward_bytes,
            8 * kTokens * kOutputs + 5 * (kTokens * kInputs + kMatrices));
  // The input's gradient at gate and up.
  EXPECT_EQ(fp8.workspace_bytes - bf16.workspace_bytes, kTokens * (28672 + 4) + 4096 * (28672 + 4));
  EXPECT_EQ(fp8.kept_bytes.none, bf16.kept_bytes.none);
}

}  // namespace
}  // namespace fsdpd
