#include "fsdp/plan/model/model_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

ModelFacts Describe(const char* preset, int64_t micro_batch = 1, int64_t sequence = 128,
                    DType compute = DType::kBf16) {
  return DescribeModel(*FindPreset(preset), micro_batch, sequence, compute);
}

std::vector<std::string> NamesOf(const UnitFacts& unit) {
  std::vector<std::string> names;
  for (const ParamFacts& param : unit.params) names.push_back(param.name);
  return names;
}

Spec TinySpec() {
  Spec spec;
  spec.model = *FindPreset("tiny");
  spec.data.sequence_length = 16;
  return spec;
}

const ParamFacts& Param(const ModelFacts& facts, int unit, const std::string& name) {
  const auto& params = facts.units[unit].params;
  return *std::find_if(params.begin(), params.end(), [&](const ParamFacts& p) { return p.name == name; });
}

// Published sizes; llama3-1b has an untied output matrix here.
TEST(ModelFacts, CountsParametersExactly) {
  EXPECT_EQ(Describe("llama3-8b").elements(), 8030261248);
  EXPECT_EQ(Describe("llama3-70b").elements(), 70553706496);
  EXPECT_EQ(Describe("llama3-1b").elements(), 1235814400 + int64_t{128256} * 2048);
  EXPECT_EQ(Describe("qwen3-8b").elements(), 8190735360);
  EXPECT_EQ(Describe("gpt2").elements(), 124439808);
}

TEST(ModelFacts, NamesUnitsAndParametersInOrder) {
  const ModelFacts facts = Describe("tiny");
  ASSERT_EQ(facts.units.size(), 6u);
  EXPECT_EQ(facts.units.front().name, "embedding");
  EXPECT_EQ(facts.units[1].name, "layer.0");
  EXPECT_EQ(facts.units[4].name, "layer.3");
  EXPECT_EQ(facts.units.back().name, "head");
  EXPECT_EQ(NamesOf(facts.units[1]),
            (std::vector<std::string>{"attention_norm", "attention.wq", "attention.wk", "attention.wv",
                                      "attention.wo", "ffn_norm", "ffn.w1", "ffn.w3", "ffn.w2"}));
  EXPECT_EQ(NamesOf(facts.units.back()), (std::vector<std::string>{"norm", "output"}));
  EXPECT_EQ(facts.units[1].params[2].shape, (std::vector<int64_t>{64, 128}));
}

TEST(ModelFacts, AddsParametersOfLlamaOptions) {
  LlamaConfig config = std::get<LlamaConfig>(*FindPreset("tiny"));
  config.qk_norm = true;
  config.attention_bias = true;
  config.tied_embeddings = true;
  config.head_size = 48;  // 4 heads over a width of 128.
  const ModelFacts facts = DescribeModel(config, 1, 16, DType::kFp32);
  EXPECT_EQ(NamesOf(facts.units[1]),
            (std::vector<std::string>{"attention_norm", "attention.wq", "attention.bq", "attention.wk",
                                      "attention.bk", "attention.wv", "attention.bv", "attention.q_norm",
                                      "attention.k_norm", "attention.wo", "ffn_norm", "ffn.w1", "ffn.w3",
                                      "ffn.w2"}));
  EXPECT_EQ(Param(facts, 1, "attention.wq").shape, (std::vector<int64_t>{192, 128}));
  EXPECT_EQ(Param(facts, 1, "attention.bk").shape, (std::vector<int64_t>{96}));
  EXPECT_EQ(Param(facts, 1, "attention.k_norm").shape, (std::vector<int64_t>{48}));
  EXPECT_EQ(Param(facts, 1, "attention.wo").shape, (std::vector<int64_t>{128, 192}));
  EXPECT_EQ(NamesOf(facts.units.back()), (std::vector<std::string>{"norm"}));
}

LlamaConfig DeepSeekV3() {
  LlamaConfig model;
  model.vocab_size = 129280;
  model.hidden_size = 7168;
  model.intermediate_size = 18432;
  model.layers = 61;
  model.heads = model.kv_heads = 128;
  model.head_size = 192;
  model.latent = {/*rank=*/512, /*query_rank=*/1536, /*plain_head_size=*/128, /*rotary_head_size=*/64,
                  /*value_head_size=*/128};
  model.experts = {256, 8, 2048, /*normalized=*/true, /*dense_layers=*/3};
  model.experts.sigmoid = model.experts.selection_bias = true;
  model.experts.shared_intermediate_size = 2048;
  return model;
}

TEST(ModelFacts, CountsDeepSeekV3) {
  constexpr int64_t kTokens = 4096;
  const ModelFacts facts = DescribeModel(DeepSeekV3(), 1, kTokens, DType::kBf16);
  EXPECT_EQ(facts.elements(), 671026419200);
  double flops = 0, attention = 0;
  for (const UnitFacts& unit : facts.units) {
    flops += unit.forward_flops;
    attention += unit.attention_flops;
  }
  // Of the 37 billion active parameters, those of the embedding take no matrix product.
  EXPECT_NEAR((flops - attention) / 2 / kTokens, 36.6e9, 0.1e9);
  EXPECT_EQ(attention, 61.0 * kTokens * kTokens * 128 * (192 + 128));
  std::vector<std::string> names;
  for (const ParamFacts& param : facts.units[1].params) names.push_back(param.name);
  EXPECT_EQ(names, (std::vector<std::string>{"attention_norm", "attention.wq_a", "attention.wkv_a",
                                             "attention.q_a_norm", "attention.wq_b", "attention.kv_a_norm",
                                             "attention.wkv_b", "attention.wo", "ffn_norm", "ffn.w1",
                                             "ffn.w3", "ffn.w2"}));
  // Projections of latents are most of the saved activations, and selective recompute drops them.
  const SavedBytes& kept = facts.units[1].saved_bytes;
  const int64_t heads = 128 * 192 + 128 * 256, gates = 2 * 18432, statistics = 4 * (2 + 1);
  EXPECT_EQ(kept.none - kept.selective, kTokens * (2 * (heads + gates) + statistics));
}

TEST(ModelFacts, TiedHeadBorrowsEmbedding) {
  EXPECT_EQ(Describe("gpt2").units.back().borrows, 0);
  EXPECT_EQ(NamesOf(Describe("gpt2").units.back()), (std::vector<std::string>{"norm.weight", "norm.bias"}));
  EXPECT_EQ(Describe("tiny").units.back().borrows, -1);
  Gpt2Config untied = std::get<Gpt2Config>(*FindPreset("gpt2"));
  untied.tied_embeddings = false;
  const UnitFacts head = DescribeModel(untied, 1, 16, DType::kFp32).units.back();
  EXPECT_EQ(head.borrows, -1);
  EXPECT_EQ(NamesOf(head), (std::vector<std::string>{"norm.weight", "norm.bias", "output"}));
}

TEST(ModelFacts, DecaysMatricesOnly) {
  for (const char* preset : {"tiny", "gpt2"}) {
    for (const UnitFacts& unit : Describe(preset).units) {
      for (const ParamFacts& param : unit.params) {
        EXPECT_EQ(param.decay, param.shape.size() == 2) << param.name;
        EXPECT_TRUE(param.trainable);
      }
    }
  }
}

TEST(ModelFacts, ActivationsScaleWithTokensAndPrecision) {
  for (const char* preset : {"llama3-8b", "qwen3-8b", "gpt2"}) {
    const ModelFacts one = Describe(preset, 1, 1024);
    const ModelFacts two = Describe(preset, 2, 1024);
    const ModelFacts fp32 = Describe(preset, 1, 1024, DType::kFp32);
    for (size_t u = 0; u < one.units.size(); ++u) {
      const SavedBytes &kept = one.units[u].saved_bytes, &twice = two.units[u].saved_bytes;
      EXPECT_EQ(twice.none, 2 * kept.none);
      EXPECT_EQ(twice.full, 2 * kept.full);
      EXPECT_GE(fp32.units[u].saved_bytes.none, kept.none);
      EXPECT_GE(kept.none, kept.selective);
      EXPECT_GE(kept.selective, kept.full);
    }
    EXPECT_EQ(one.units[1].saved_bytes.full, one.units[0].output_bytes);
  }
  // Korthikanti et al. count 34 bytes per token and hidden element for a GPT layer; SwiGLU's wider layer adds
  // to it.
  const double kept = static_cast<double>(Describe("llama3-8b", 1, 1024).units[1].saved_bytes.none);
  EXPECT_GT(kept / (1024.0 * 4096), 20);
  EXPECT_LT(kept / (1024.0 * 4096), 60);
}

TEST(ModelFacts, HeadWorkspaceIsBoundedByChunk) {
  const UnitFacts few = Describe("llama3-8b", 1, kLossChunkTokens).units.back();
  const UnitFacts many = Describe("llama3-8b", 1, 8 * kLossChunkTokens).units.back();
  const int64_t hidden_bytes = kLossChunkTokens * 4096 * 2;
  EXPECT_LE(many.workspace_bytes - few.workspace_bytes, 7 * 2 * hidden_bytes);
  EXPECT_LT(many.saved_bytes.none, 8 * kLossChunkTokens * 128256);  // Logits take two bytes each.
}

TEST(ModelFacts, CountsCausalAttentionHalf) {
  const UnitFacts layer = Describe("llama3-8b", 1, 8192).units[1];
  const double tokens = 8192, matrices = static_cast<double>(layer.elements() - 2 * 4096);
  EXPECT_DOUBLE_EQ(layer.attention_flops, 4 * tokens * tokens * 4096 / 2);
  EXPECT_DOUBLE_EQ(layer.forward_flops, 2 * tokens * matrices + layer.attention_flops);
  EXPECT_DOUBLE_EQ(Describe("gpt2", 1, 8).units.back().forward_flops,
                   2.0 * 8 * 50257 * 768);  // Tied, but still computed.
}

TEST(DescribeSpec, AppliesWeightDecayPerGroup) {
  Spec spec = TinySpec();
  spec.optimizer.weight_decay = 0.25;
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_EQ(Param(facts, 1, "ffn.w1").weight_decay, 0.25);
  EXPECT_EQ(Param(facts, 1, "ffn_norm").weight_decay, 0);
  EXPECT_EQ(Param(facts, 1, "ffn.w1").lr_scale, 1);
}

TEST(DescribeSpec, UsesFirstMatchingGroup) {
  Spec spec = TinySpec();
  spec.optimizer.weight_decay = 0.25;
  spec.optimizer.groups = {{{"nothing", "layer.1.*"}, std::nullopt, 0.5},
                           {{"layer.*norm", "head.*"}, 0.125, 2}};
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_EQ(Param(facts, 2, "ffn_norm").lr_scale, 0.5);
  EXPECT_EQ(Param(facts, 2, "ffn_norm").weight_decay, 0);  // Not set by the group.
  EXPECT_EQ(Param(facts, 2, "ffn.w2").weight_decay, 0.25);
  EXPECT_EQ(Param(facts, 1, "ffn_norm").weight_decay, 0.125);
  EXPECT_EQ(Param(facts, 1, "ffn_norm").lr_scale, 2);
  EXPECT_EQ(Param(facts, 1, "ffn.w2").lr_scale, 1);
  EXPECT_EQ(Param(facts, 5, "output").weight_decay, 0.125);
}

TEST(DescribeSpec, FreezesParametersByPattern) {
  Spec spec = TinySpec();
  spec.frozen = {"embedding.*", "layer.0.attention.w*"};
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_FALSE(facts.units[0].params[0].trainable);
  EXPECT_FALSE(Param(facts, 1, "attention.wo").trainable);
  EXPECT_TRUE(Param(facts, 1, "attention_norm").trainable);
  EXPECT_TRUE(Param(facts, 2, "attention.wo").trainable);
}

TEST(DescribeSpec, AssignsChoiceCountsToSelectionBiases) {
  Spec spec = TinySpec();  // Four layers.
  ExpertsConfig& experts = std::get<LlamaConfig>(spec.model).experts;
  experts = {8, 2, 64};
  experts.dense_layers = 1;
  experts.sigmoid = experts.selection_bias = true;
  EXPECT_EQ(DescribeSpec(spec).choices, 0);
  EXPECT_FALSE(Param(DescribeSpec(spec), 2, "ffn.router_bias").is_selection_bias());
  experts.bias_update_rate = 0.001;
  spec.frozen = {"layer.2.ffn.router_bias"};
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_EQ(facts.choices, 24);
  EXPECT_EQ(Param(facts, 2, "ffn.router_bias").choices_begin, 0);
  EXPECT_FALSE(Param(facts, 3, "ffn.router_bias").is_selection_bias());
  EXPECT_EQ(Param(facts, 4, "ffn.router_bias").choices_begin, 16);
  EXPECT_FALSE(Param(facts, 4, "ffn.router").is_selection_bias());
  EXPECT_FALSE(Param(facts, 4, "ffn.router_bias").trainable);
  EXPECT_FALSE(Param(DescribeModel(spec.model, 1, 16, DType::kBf16), 4, "ffn.router_bias").trainable);
}

TEST(DescribeSpec, SetsInitialDeviation) {
  Spec spec = TinySpec();  // Four layers.
  EXPECT_EQ(Param(DescribeSpec(spec), 1, "attention.wo").deviation, 0.02);
  spec.initial = {0.0134, 0.5, true};
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_EQ(Param(facts, 0, "weight").deviation, 0.5);
  EXPECT_EQ(Param(facts, 1, "attention.wq").deviation, 0.0134);
  EXPECT_EQ(Param(facts, 5, "output").deviation, 0.0134);
  EXPECT_EQ(Param(facts, 1, "attention.wo").deviation, 0.0134 / std::sqrt(8.0));
  EXPECT_EQ(Param(facts, 4, "ffn.w2").deviation, 0.0134 / std::sqrt(8.0));
  spec.initial.embedding_deviation.reset();
  EXPECT_EQ(Param(DescribeSpec(spec), 0, "weight").deviation, 0.0134);
  // GPT-2 scales by default, unless the spec says otherwise.
  spec.model = Gpt2Config{256, 64, 96, 2, 4, 64};
  spec.initial = {};
  EXPECT_EQ(Param(DescribeSpec(spec), 1, "ffn.w2").deviation, 0.02 / 2);
  spec.initial.scale_outputs = false;
  EXPECT_EQ(Param(DescribeSpec(spec), 1, "ffn.w2").deviation, 0.02);
}

TEST(MatchesPattern, StarMatchesAnyText) {
  for (const char* pattern : {"layer.10.ffn.w1", "*", "layer.*", "*w1", "layer.*.ffn.w1", "l*r.1*0*.*", "**1",
                              "layer.10.ffn.w1*", "*layer.10.ffn.w1"}) {
    EXPECT_TRUE(MatchesPattern("layer.10.ffn.w1", pattern)) << pattern;
  }
  for (const char* pattern : {"", "layer.1", "layer.1.*", "layer.10.ffn", "w1", "layer*w2",
                              "layer.10.ffn.w1?", "layer.10.ffn.w.", "*w1*w1"}) {
    EXPECT_FALSE(MatchesPattern("layer.10.ffn.w1", pattern)) << pattern;
  }
  EXPECT_TRUE(MatchesPattern("", "*"));
  EXPECT_TRUE(MatchesPattern("aaab", "*ab"));  // Backtracking.
}

TEST(RecomputeOf, UsesSpecOnFirstLayersAndNextCheaperOnRest) {
  Spec spec = TinySpec();
  const ModelFacts facts = DescribeSpec(spec);
  const auto all = [&] {
    std::vector<Recompute> policies;
    for (int u = 0; u < static_cast<int>(facts.units.size()); ++u)
      policies.push_back(RecomputeOf(spec, facts, u));
    return policies;
  };
  const auto none = Recompute::kNone, selective = Recompute::kSelective, full = Recompute::kFull;
  spec.recompute = full;
  spec.recompute_layers = 3;
  EXPECT_EQ(all(), (std::vector<Recompute>{none, full, full, full, selective, none}));
  spec.recompute = selective;
  spec.recompute_layers = 1;
  EXPECT_EQ(all(), (std::vector<Recompute>{none, selective, none, none, none, none}));
  spec.recompute = none;
  spec.recompute_layers = 4;
  EXPECT_EQ(all(), (std::vector<Recompute>(6, none)));
}

TEST(ModelFacts, UsesPluginNumbersPerToken) {
  PluginConfig model;
  model.vocab_size = 10;
  model.units = {{"in", {{"weight", {10, 4}}}, "", 0, 0, 0, 4},
                 {"mix", {{"w", {4, 6}}, {"b", {6}, false}}, "", 12, 8, 3, 4, 48},
                 {"out", {{"bias", {10}, false}}, "in", 2}};
  const ModelFacts facts = DescribeModel(model, /*micro_batch=*/2, /*sequence_length=*/8, DType::kBf16);
  ASSERT_EQ(facts.units.size(), 3u);
  EXPECT_EQ(facts.elements(), 40 + 24 + 6 + 10);
  const UnitFacts& mix = facts.units[1];
  EXPECT_EQ(mix.kind, UnitKind::kBlock);
  EXPECT_EQ(mix.saved_bytes.none, 16 * 12 * 2);
  EXPECT_EQ(mix.saved_bytes.selective, 16 * 8 * 2);
  EXPECT_EQ(mix.saved_bytes.full, 16 * 4 * 2);
  EXPECT_EQ(mix.workspace_bytes, 16 * 3 * 2 + 24 * 2);
  EXPECT_EQ(mix.output_bytes, 16 * 4 * 2);
  EXPECT_EQ(mix.forward_flops, 16 * 48);
  EXPECT_FALSE(mix.params[1].decay);
  EXPECT_EQ(facts.units[0].kind, UnitKind::kEmbedding);
  EXPECT_EQ(facts.units[0].saved_bytes.none, 16 * 8);  // Token ids.
  EXPECT_EQ(facts.units[2].kind, UnitKind::kHead);
  EXPECT_EQ(facts.units[2].borrows, 0);
  EXPECT_EQ(facts.units[2].saved_bytes.none, 16 * 4 * 2);  // At least the input.
}

// Regression test: padding made each token a document, which used 2 GiB that the plan did not count.
TEST(DescribeSpec, CountsDocumentAttentionWorkspaceOnCuda) {
  Spec spec = TinySpec();
  spec.device = DeviceKind::kCuda;
  spec.precision.compute = DType::kBf16;
  spec.data.sequence_length = 8192;
  const auto workspace = [&spec](bool documents) {
    spec.data.document_end_token.reset();
    if (documents) spec.data.document_end_token = 0;
    return DescribeSpec(spec).units[1].workspace_bytes;
  };
  spec.model = *FindPreset("llama3-8b");
  EXPECT_EQ(workspace(true), workspace(false)) << "gates and ups are gone when attention needs it";
  std::get<LlamaConfig>(spec.model).intermediate_size = 64;
  const int64_t padded = (2 * 8192 + 128) * int64_t{4096} * 4;
  EXPECT_GT(workspace(true), padded);
  EXPECT_GT(workspace(true), workspace(false));
  spec.device = DeviceKind::kCpu;
  EXPECT_EQ(workspace(true), workspace(false)) << "there they are attended to one by one";
}

// llama3-8b at 8192 tokens: flash attention has five query-gradient accumulators of 128 MiB each, one number
// per row and head, and key and value gradients for each of 32 heads.
TEST(DescribeSpec, CountsDeterministicAttentionWorkspace) {
  Spec spec;
  spec.model = *FindPreset("llama3-8b");
  spec.data.sequence_length = 8192;
  spec.device = DeviceKind::kCuda;
  spec.precision.compute = DType::kBf16;
  const auto workspace = [&spec] { return DescribeSpec(spec).units[1].workspace_bytes; };
  const int64_t without = workspace();
  spec.deterministic = true;
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t sums = 5 * 128 * kMiB + 1 * kMiB, gradients = (2 * 64 + 2 * 64 + 2 * 16) * kMiB;
  const int64_t gone = (2 * 224 + 64) * kMiB;
  EXPECT_EQ(workspace(), sums + gradients - gone);
  EXPECT_GT(workspace(), without);
  spec.micro_batch = 8;  // Enough heads for all multiprocessors: one accumulator each.
  EXPECT_EQ(workspace(), 8 * without);
  spec.micro_batch = 1;
  spec.precision.compute = DType::kFp32;
  const int64_t wide = workspace();
  spec.deterministic = false;
  EXPECT_EQ(workspace(), wide);
}

TEST(DescribeSpec, CountsExpertPaddingRowsOnCuda) {
  Spec spec = TinySpec();
  spec.precision.compute = DType::kBf16;
  auto& llama = std::get<LlamaConfig>(spec.model);
  llama.experts.count = 32;
  llama.experts.per_token = 2;
  llama.experts.intermediate_size = 24;
  const auto kept = [&spec](DeviceKind device) {
    spec.device = device;
    return DescribeSpec(spec).units[1].saved_bytes.none;
  };
  // Gate and up per row in bf16; the row's choice and its weight.
  EXPECT_EQ(kept(DeviceKind::kCuda) - kept(DeviceKind::kCpu), 32 * kExpertRowStep * (2 * 24 * 2 + 4 + 4));
  // Equal to the CPU without padding rows.
  llama.experts.count = 0;
  EXPECT_EQ(kept(DeviceKind::kCuda), kept(DeviceKind::kCpu));
}

TEST(DescribeSpec, CountsExpertWeightGradientOnCuda) {
  Spec spec = TinySpec();
  spec.device = DeviceKind::kCuda;
  spec.precision.compute = DType::kBf16;
  auto& llama = std::get<LlamaConfig>(spec.model);
  llama.experts.count = 256;
  llama.experts.per_token = 1;
  llama.experts.intermediate_size = 512;
  const UnitFacts trained = DescribeSpec(spec).units[1];
  const int64_t matrix = 256 * 512 * llama.hidden_size;
  EXPECT_GT(trained.workspace_bytes, 2 * matrix);
  // A frozen matrix has no gradient to compute in bf16 and to write in fp32. The last one frees the
  // workspace.
  spec.frozen = {"*.experts.w1", "*.experts.w2"};
  EXPECT_EQ(trained.workspace_bytes, DescribeSpec(spec).units[1].workspace_bytes);
  EXPECT_EQ(trained.backward_bytes - DescribeSpec(spec).units[1].backward_bytes, 2 * (2 + 4) * matrix);
  spec.frozen = {"layer.*"};
  EXPECT_EQ(trained.workspace_bytes - DescribeSpec(spec).units[1].workspace_bytes, 2 * matrix);
  spec.frozen = {};
  spec.lora = {/*rank=*/8, /*alpha=*/8, /*rank_stabilized=*/false, {"*.attention.wq"}};
  const int64_t adapter =
      2 * 2 * 8 * spec.data.sequence_length;  // Its product with x, and the gradient of it.
  EXPECT_EQ(trained.workspace_bytes - DescribeSpec(spec).units[1].workspace_bytes, 2 * matrix - adapter);
}

TEST(DescribeSpec, FrozenVocabularyHasNoGradient) {
  Spec spec = TinySpec();
  spec.data.sequence_length = 3 * kLossChunkTokens;  // The last two chunks add to the gradient of the first.
  spec.precision.compute = spec.precision.grad_comm = DType::kBf16;
  const auto& llama = std::get<LlamaConfig>(spec.model);
  const int64_t vocabulary = llama.vocab_size * llama.hidden_size;
  const ModelFacts trained = DescribeSpec(spec);
  spec.frozen = {"head.output", "embedding.weight"};
  const ModelFacts frozen = DescribeSpec(spec);
  EXPECT_EQ(trained.units.back().backward_bytes - frozen.units.back().backward_bytes, 2 * 4 * vocabulary);
  // On CPUs, the embedding's gradient is a sum in fp32, of fp32 copies of the tokens' gradients.
  const int64_t tokens = spec.data.sequence_length * llama.hidden_size;
  EXPECT_EQ(trained.units[0].workspace_bytes - frozen.units[0].workspace_bytes, 4 * (vocabulary + tokens));
}

}  // namespace
}  // namespace fsdpd
