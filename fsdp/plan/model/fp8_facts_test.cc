#include "fsdp/plan/model/fp8_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fsdp/plan/model/describe_model.h"

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

TEST(Fp8Facts, QuantizesOnlyLayerMatrices) {
  const ModelFacts facts = DescribeSpec(SpecOf("llama3-8b"));
  EXPECT_TRUE(Fp8Names(facts.units.front()).empty());
  EXPECT_TRUE(Fp8Names(facts.units.back()).empty());
  for (size_t u = 1; u + 1 < facts.units.size(); ++u) {
    EXPECT_EQ(Fp8Names(facts.units[u]), kAll);
    EXPECT_EQ(facts.units[u].fp8_flops, facts.units[u].forward_flops - facts.units[u].attention_flops);
  }
}

TEST(Fp8Facts, KeepsWholeProductInBf16) {
  Spec spec = SpecOf("llama3-8b");
  spec.precision.keep_bf16 = {"layer.0.*", "*.attention.wk", "layer.2.ffn.w3", "layer.3.ffn.w2"};
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_TRUE(Fp8Names(facts.units[1]).empty());
  EXPECT_EQ(facts.units[1].fp8_flops, 0);
  EXPECT_EQ(Fp8Names(facts.units[2]), (std::set<std::string>{"attention.wo", "ffn.w1", "ffn.w3", "ffn.w2"}));
  EXPECT_EQ(Fp8Names(facts.units[3]), (std::set<std::string>{"attention.wo", "ffn.w2"}));
  EXPECT_EQ(Fp8Names(facts.units[4]), (std::set<std::string>{"attention.wo", "ffn.w1", "ffn.w3"}));
}

Spec SpecOfExperts() {
  Spec spec = SpecOf("llama3-8b");
  ExpertsConfig& experts = std::get<LlamaConfig>(spec.model).experts;
  experts.count = 8;
  experts.per_token = 2;
  experts.intermediate_size = 1024;
  experts.shared_intermediate_size = 512;
  return spec;
}

TEST(Fp8Facts, QuantizesExpertsAndSharedExpertButNotRouter) {
  EXPECT_EQ(Fp8Names(DescribeSpec(SpecOfExperts()).units[1]),
            (std::set<std::string>{"attention.wq", "attention.wk", "attention.wv", "attention.wo",
                                   "ffn.experts.w1", "ffn.experts.w3", "ffn.experts.w2", "ffn.shared.w1",
                                   "ffn.shared.w3", "ffn.shared.w2"}));
}

TEST(Fp8Facts, QuantizesOnlyOutputOfLatentAttention) {
  Spec spec = SpecOf("llama3-8b");
  LlamaConfig& model = std::get<LlamaConfig>(spec.model);
  model.kv_heads = model.heads;
  model.head_size = 192;
  model.latent = {512, 1536, 128, 64, 128};
  const std::set<std::string> names = Fp8Names(DescribeSpec(spec).units[1]);
  EXPECT_EQ(names, (std::set<std::string>{"attention.wo", "ffn.w1", "ffn.w3", "ffn.w2"}));
}

// Llama 8B's layer, 8192 tokens: 218 million weights.
constexpr int64_t kTokens = 8192, kMatrices = 218'103'808, kHidden = 4096, kWide = 14336;

UnitFacts Added(const Spec& with_fp8) {
  Spec spec = with_fp8;
  UnitFacts added = DescribeSpec(spec).units[1];
  spec.precision.fp8 = false;
  const UnitFacts bf16 = DescribeSpec(spec).units[1];
  EXPECT_EQ(added.saved_bytes.none, bf16.saved_bytes.none);
  added.forward_bytes -= bf16.forward_bytes;
  added.backward_bytes -= bf16.backward_bytes;
  added.workspace_bytes -= bf16.workspace_bytes;
  return added;
}

TEST(Fp8Facts, CountsTrafficAndWorkspaceOfQuantization) {
  const UnitFacts added = Added(SpecOf("llama3-8b"));
  // Norms and SwiGLU write one byte instead of two; attention's output is read again.
  EXPECT_EQ(added.forward_bytes, 3 * kTokens * kHidden - kTokens * (2 * kHidden + kWide));
  // Rows of the gradients of qkv, attention's output and the layer's output; columns of these, of both norms'
  // outputs and of attention's; SwiGLU; weight transposes.
  constexpr int64_t kGrads = 6144 + 2 * kHidden;
  EXPECT_EQ(added.backward_bytes,
            kTokens * (3 * kGrads + 5 * (kGrads + 3 * kHidden) + 5 * kWide) + 2 * kMatrices);
  // Gradients of gate and up by row and by column, and SwiGLU's output by column.
  EXPECT_EQ(added.workspace_bytes, 5 * kTokens * kWide + 4 * (kTokens + 3 * kWide));
}

TEST(Fp8Facts, QuantizesAfterTensorParallelGather) {
  Spec spec = SpecOf("llama3-8b");
  spec.mesh = Mesh::DataParallel(1, 2).WithTensor(2);
  const UnitFacts added = Added(spec);
  EXPECT_EQ(added.forward_bytes, 3 * kTokens * (2 * kHidden + kHidden / 2 + kWide / 2));
}

TEST(Fp8Facts, SwigluWritesBf16NextToBf16Product) {
  Spec spec = SpecOf("llama3-8b");
  spec.precision.keep_bf16 = {"*.ffn.w1"};
  const UnitFacts added = Added(spec);
  constexpr int64_t kGrads = 6144 + 2 * kHidden, kInputs = 2 * kHidden + kWide;
  EXPECT_EQ(added.backward_bytes,
            kTokens * (8 * kGrads + 5 * kInputs) + 2 * (kMatrices - 2 * kHidden * kWide));
}

// In addition to attention's (above): tokens are quantized, copied into rows at half the bytes, and inputs of
// products quantized. Backward: gradients by row, both by column, weight transposes.
TEST(Fp8Facts, CountsTrafficAndWorkspaceOfExpertQuantization) {
  Spec spec = SpecOfExperts();
  const UnitFacts all = Added(spec);
  spec.precision.keep_bf16 = {"*.experts.*"};
  const UnitFacts without = Added(spec);
  constexpr int64_t kWidth = 1024, kRows = 2 * kTokens, kExperts = 8;
  EXPECT_EQ(all.forward_bytes - without.forward_bytes,
            3 * kTokens * kHidden - 2 * kRows * kHidden + 3 * kRows * kWidth);
  EXPECT_EQ(all.backward_bytes - without.backward_bytes,
            kRows * (3 * (2 * kWidth + kHidden) + 5 * (3 * kWidth + 2 * kHidden)) +
                2 * 3 * kExperts * kWidth * kHidden - 2 * 4 * kRows * kHidden);
  EXPECT_EQ(all.fp8_flops - without.fp8_flops, 2.0 * 3 * kRows * kWidth * kHidden);
  // Rows as received and by expert, including padding rows.
  EXPECT_EQ(all.workspace_bytes, 2 * (kRows + 16 * kExperts) * (kHidden + 4));
}

// Rows are sent to other ranks' experts at half the bytes, with their scales.
TEST(Fp8Facts, DispatchesQuantizedRows) {
  Spec spec = SpecOfExperts();
  spec.mesh = Mesh::DataParallel(1, 8).WithExpert(8);
  int64_t bf16 = 0, fp32 = 0;
  const ModelFacts facts = DescribeSpec(spec);
  for (const UnitExchange& exchange : facts.units[1].exchanges) {
    ASSERT_EQ(exchange.what, Exchange::kAllToAll);
    (exchange.type == DType::kFp32 ? fp32 : bf16) += exchange.forward_elements;
  }
  constexpr int64_t kRoom = 8 * (2 * kTokens / 8 * 5 / 4 + 1);  // Buffer parts for eight ranks.
  EXPECT_EQ(bf16, kRoom * kHidden * 3 / 2);
  EXPECT_EQ(fp32, 3 * kRoom);  // Expert indices, weights, scales.
}

// Tokens of all ranks are quantized here, and rows are read in place.
TEST(Fp8Facts, AllGathersUnquantizedTokens) {
  Spec spec = SpecOfExperts();
  spec.mesh = Mesh::DataParallel(1, 2).WithExpert(2);
  int64_t bf16 = 0;
  const ModelFacts facts = DescribeSpec(spec);
  for (const UnitExchange& exchange : facts.units[1].exchanges)
    bf16 += exchange.type == DType::kFp32 ? 0 : exchange.forward_elements;
  EXPECT_EQ(bf16, 2 * 2 * kTokens * kHidden);
  const UnitFacts all = Added(spec);
  spec.precision.keep_bf16 = {"*.experts.*"};
  const UnitFacts without = Added(spec);
  constexpr int64_t kWidth = 1024, kRows = 2 * kTokens;
  EXPECT_EQ(all.forward_bytes - without.forward_bytes,
            3 * 2 * kTokens * kHidden - 2 * kRows * kHidden + 3 * kRows * kWidth);
}

TEST(Fp8Facts, CountsWorkspaceForTokensOfAllRanks) {
  Spec spec = SpecOfExperts();
  spec.mesh = Mesh::DataParallel(1, 4).WithExpert(4);
  constexpr int64_t kRows = 2 * kTokens * 5 / 4 + 1, kFilling = 16 * 2;  // 2 of 8 experts.
  static_assert(4 * kTokens > kRows + kFilling);
  EXPECT_EQ(Added(spec).workspace_bytes, (kRows + kFilling + 4 * kTokens) * (kHidden + 4));
}

}  // namespace
}  // namespace fsdpd
