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

// Llama 8B's layer, 8192 tokens: 218 million weights.
constexpr int64_t kTokens = 8192, kMatrices = 218'103'808, kHidden = 4096, kWide = 14336;

UnitFacts Added(const Spec& with_fp8) {
  Spec spec = with_fp8;
  UnitFacts added = DescribeSpec(spec).units[1];
  spec.precision.fp8 = false;
  const UnitFacts bf16 = DescribeSpec(spec).units[1];
  EXPECT_EQ(added.kept_bytes.none, bf16.kept_bytes.none);
  added.forward_bytes -= bf16.forward_bytes;
  added.backward_bytes -= bf16.backward_bytes;
  added.workspace_bytes -= bf16.workspace_bytes;
  return added;
}

TEST(Fp8Facts, WhatIsRoundedMovesAndTakesRoom) {
  const UnitFacts added = Added(SpecOf("llama3-8b"));
  // Norms and SwiGLU write a byte where they wrote two; attention's output is read again.
  EXPECT_EQ(added.forward_bytes, 3 * kTokens * kHidden - kTokens * (2 * kHidden + kWide));
  // Rows of the gradients of qkv, of attention's output and of the layer's; columns of these, of both norms'
  // outputs and of attention's; SwiGLU; and matrices are turned.
  constexpr int64_t kGrads = 6144 + 2 * kHidden;
  EXPECT_EQ(added.backward_bytes,
            kTokens * (3 * kGrads + 5 * (kGrads + 3 * kHidden) + 5 * kWide) + 2 * kMatrices);
  // The gradients of gate and up by row and by column, and the product by column.
  EXPECT_EQ(added.workspace_bytes, 5 * kTokens * kWide + 4 * (kTokens + 3 * kWide));
}

TEST(Fp8Facts, WhatGoesToOtherRanksFirstIsRoundedAfterwards) {
  Spec spec = SpecOf("llama3-8b");
  spec.mesh = Mesh::DataParallel(1, 2).WithTensor(2);
  const UnitFacts added = Added(spec);
  EXPECT_EQ(added.forward_bytes, 3 * kTokens * (2 * kHidden + kHidden / 2 + kWide / 2));
}

TEST(Fp8Facts, BesideAProductInBf16SwigluWritesBf16) {
  Spec spec = SpecOf("llama3-8b");
  spec.precision.keep_bf16 = {"*.ffn.w1"};
  const UnitFacts added = Added(spec);
  constexpr int64_t kGrads = 6144 + 2 * kHidden, kInputs = 2 * kHidden + kWide;
  EXPECT_EQ(added.backward_bytes,
            kTokens * (8 * kGrads + 5 * kInputs) + 2 * (kMatrices - 2 * kHidden * kWide));
}

}  // namespace
}  // namespace fsdpd
