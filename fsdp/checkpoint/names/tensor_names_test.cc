// tests/parity shows that the names are those of transformers.
#include "fsdp/checkpoint/names/tensor_names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

std::vector<ModelConfig> Models() {
  LlamaConfig with_all = SmallLlama();
  with_all.qk_norm = with_all.attention_bias = with_all.tied_embeddings = true;
  Gpt2Config untied = SmallGpt2();
  untied.tied_embeddings = false;
  return {SmallLlama(), with_all, SmallGpt2(), untied};
}

// Fails if a parameter is added to a model but not to the table.
TEST(TensorNames, EveryParameterHasOneNamePerNaming) {
  for (const ModelConfig& model : Models()) {
    size_t count = 0;
    for (const UnitFacts& unit : DescribeModel(model, 1, 1, DType::kFp32).units) count += unit.params.size();
    for (const Naming naming :
         {Naming::kOurs, Naming::kTransformers}) {  // Megatron-Core's tensors have several.
      std::set<std::string> theirs;
      for (const NamedParam& param : ParamsOf(model, naming)) theirs.insert(param.theirs);
      EXPECT_EQ(theirs.size(), count);
    }
  }
}

TEST(TensorNames, TorchtitanSupportsPlainLlamaOnly) {
  const std::vector<ModelConfig> models = Models();
  EXPECT_FALSE(ParamsOf(models[0], Naming::kTorchtitan).empty());
  EXPECT_TRUE(ParamsOf(models[1], Naming::kTorchtitan).empty());
  EXPECT_TRUE(ParamsOf(models[2], Naming::kTorchtitan).empty());
}

TEST(TensorNames, TiedHeadHasNameButIsNotAParameter) {
  EXPECT_EQ(TiedName(SmallLlama(), Naming::kTransformers), std::nullopt);
  EXPECT_EQ(TiedName(SmallGpt2(), Naming::kTransformers), "lm_head.weight");
  for (const NamedParam& param : ParamsOf(SmallGpt2(), Naming::kTransformers)) {
    EXPECT_NE(param.theirs, "lm_head.weight");
  }
}

TEST(TensorNames, ComputedBuffersAreNotParameters) {
  EXPECT_TRUE(IsComputed("model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(IsComputed("h.11.attn.masked_bias"));
  for (const ModelConfig& model : Models()) {
    for (const Naming naming : {Naming::kOurs, Naming::kTransformers, Naming::kTorchtitan}) {
      for (const NamedParam& param : ParamsOf(model, naming)) EXPECT_FALSE(IsComputed(param.theirs));
    }
  }
}

// For a naming, by tensor: how often each element belongs to a parameter.
std::map<std::string, std::vector<int>> Covered(const std::vector<NamedParam>& params) {
  std::map<std::string, std::vector<int>> covered;
  for (const NamedParam& param : params) {
    int64_t all = 1, ours = 1;
    for (const int64_t size : param.TheirShape()) all *= size;
    for (const int64_t size : param.shape) ours *= size;
    std::vector<int>& times = covered[param.theirs];
    times.resize(all);
    std::vector<SharedRun> runs = param.runs;
    if (runs.empty()) runs = {{0, 0, all}};
    int64_t at = 0;
    std::sort(runs.begin(), runs.end(),
              [](const SharedRun& a, const SharedRun& b) { return a.ours < b.ours; });
    for (const SharedRun& run : runs) {
      EXPECT_EQ(run.ours, at) << param.ours;
      at += run.numbers;
      for (int64_t i = 0; i < run.numbers; ++i) ++times.at(run.theirs + i);
    }
    EXPECT_EQ(at, ours) << param.ours;
  }
  return covered;
}

TEST(TensorNames, ParametersCoverSharedTensorsOnce) {
  for (const ModelConfig& model : Models()) {
    for (const Naming naming : {Naming::kMegatron, Naming::kMegatronLayers}) {
      const auto covered = Covered(ParamsOf(model, naming));
      ASSERT_FALSE(covered.empty());
      for (const auto& [name, times] : covered) {
        EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << name;
      }
    }
  }
}

TEST(TensorNames, ExpertsMapToPartsOfOurTensor) {
  for (const LlamaConfig& model : {SmallMixtral(), SmallQwen3Moe(), SmallDots1(), SmallDeepSeek()}) {
    const std::vector<NamedParam> ours = ParamsOf(model, Naming::kOurs);
    const std::vector<NamedParam> theirs = ParamsOf(model, Naming::kTransformers);
    ASSERT_EQ(ours.size(), theirs.size());
    std::set<std::string> names;
    int64_t experts = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].ours, theirs[i].ours);
      EXPECT_EQ(ours[i].ours_begin, theirs[i].ours_begin);
      EXPECT_TRUE(names.insert(theirs[i].theirs).second) << theirs[i].theirs;
      experts += ours[i].runs.empty() ? 0 : 1;
    }
    EXPECT_EQ(experts, model.expert_layers() * model.experts.count * 3);
    for (const auto& [name, times] : Covered(ours))
      EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << name;
    for (const Naming naming : {Naming::kTorchtitan, Naming::kMegatron, Naming::kMegatronLayers})
      EXPECT_TRUE(ParamsOf(model, naming).empty());
  }
  const auto theirs_of = [](const LlamaConfig& model, const std::string& ours, int64_t begin) {
    for (const NamedParam& param : ParamsOf(model, Naming::kTransformers)) {
      if (param.ours == ours && param.ours_begin == begin) return param.theirs;
    }
    return std::string();
  };
  EXPECT_EQ(theirs_of(SmallMixtral(), "layer.1.ffn.experts.w2", 2 * 12 * 8),
            "model.layers.1.block_sparse_moe.experts.2.w2.weight");
  EXPECT_EQ(theirs_of(SmallMixtral(), "layer.0.ffn.router", 0),
            "model.layers.0.block_sparse_moe.gate.weight");
  EXPECT_EQ(theirs_of(SmallQwen3Moe(), "layer.1.ffn.experts.w3", 4 * 6 * 8),
            "model.layers.1.mlp.experts.4.up_proj.weight");
  EXPECT_EQ(theirs_of(SmallQwen3Moe(), "layer.0.ffn.w1", 0), "model.layers.0.mlp.gate_proj.weight");
}

TEST(TensorNames, LatentsHaveDeepSeekNames) {
  std::map<std::string, std::string> theirs;
  for (const NamedParam& param : ParamsOf(SmallDeepSeek(), Naming::kTransformers))
    theirs[param.ours] = param.theirs;
  for (const auto& [ours, name] :
       {std::pair("wq_a", "q_a_proj"), std::pair("q_a_norm", "q_a_layernorm"), std::pair("wq_b", "q_b_proj"),
        std::pair("wkv_a", "kv_a_proj_with_mqa"), std::pair("kv_a_norm", "kv_a_layernorm"),
        std::pair("wkv_b", "kv_b_proj"), std::pair("wo", "o_proj")}) {
    EXPECT_EQ(theirs["layer.1.attention." + std::string(ours)],
              "model.layers.1.self_attn." + std::string(name) + ".weight");
  }
  LlamaConfig direct = SmallDeepSeek();
  direct.latent.query_rank = 0;
  EXPECT_EQ(ParamsOf(direct, Naming::kTransformers)[2].theirs, "model.layers.0.self_attn.q_proj.weight");
}

TEST(TensorNames, ExtraDeepSeekLayersPredictMoreTokens) {
  EXPECT_TRUE(IsOfMoreTokens(SmallDeepSeek(), "model.layers.2.eh_proj.weight"));
  EXPECT_FALSE(IsOfMoreTokens(SmallDeepSeek(), "model.layers.1.self_attn.q_a_proj.weight"));
  EXPECT_FALSE(IsOfMoreTokens(SmallDeepSeek(), "model.layers"));
  EXPECT_FALSE(IsOfMoreTokens(SmallDots1(), "model.layers.2.eh_proj.weight"));
}

const NamedParam& Find(const std::vector<NamedParam>& params, const std::string& ours) {
  return *std::find_if(params.begin(), params.end(), [&](const NamedParam& p) { return p.ours == ours; });
}

// Queries of a group, its key and its value, then the next group's; gates before ups; stacked layers.
TEST(TensorNames, MegatronGroupsHeadsAndStacksLayers) {
  LlamaConfig llama = SmallLlama();
  llama.heads = 4;
  llama.kv_heads = 2;
  llama.head_size = 2;
  std::vector<NamedParam> params = ParamsOf(llama, Naming::kMegatron);
  const NamedParam& keys = Find(params, "layer.1.attention.wk");
  EXPECT_EQ(keys.theirs, "decoder.layers.self_attention.linear_qkv.weight");
  EXPECT_EQ(keys.TheirShape(), (std::vector<int64_t>{2, 16, 8}));
  ASSERT_EQ(keys.runs.size(), 2u);
  EXPECT_EQ(keys.runs[1].ours, 2 * 8);
  EXPECT_EQ(keys.runs[1].theirs, (16 + 8 + 4) * 8) << "past layer 0, a group and two queries";
  EXPECT_EQ(Find(params, "layer.0.ffn.w3").runs[0].theirs, 12 * 8);
  EXPECT_EQ(Find(params, "layer.1.attention_norm").TheirShape(), (std::vector<int64_t>{2, 8}));
  params = ParamsOf(llama, Naming::kMegatronLayers);
  EXPECT_EQ(Find(params, "layer.1.attention.wk").theirs, "decoder.layers.1.self_attention.linear_qkv.weight");
  EXPECT_EQ(Find(params, "layer.1.attention.wk").TheirShape(), (std::vector<int64_t>{16, 8}));
  EXPECT_TRUE(Find(params, "layer.1.attention_norm").runs.empty());
}

std::string Turned(bool to_ours, Rearrangement rearrangement, const std::string& in, int64_t rows,
                   int64_t columns) {
  std::string out(in.size(), '?');
  Rearrange(rearrangement, to_ours, rows, columns, 4, 1, in.data(), out.data());
  return out;
}

TEST(TensorNames, TransposesMatrices) {
  EXPECT_EQ(Turned(false, Rearrangement::kTransposed, "abcdef", 2, 3), "adbecf");
  EXPECT_EQ(Turned(true, Rearrangement::kTransposed, "adbecf", 2, 3), "abcdef");
}

// Two heads of four rows: halves in ours, pairs when stored.
TEST(TensorNames, ConvertsHalvesToPairsPerHead) {
  EXPECT_EQ(Turned(false, Rearrangement::kPairs, "ABabCDcd", 8, 1), "AaBbCcDd");
  EXPECT_EQ(Turned(true, Rearrangement::kPairs, "AaBbCcDd", 8, 1), "ABabCDcd");
  EXPECT_EQ(Turned(false, Rearrangement::kPairs, "A1B2a3b4", 4, 2), "A1a3B2b4") << "rows stay whole";
}

TEST(TensorNames, ConversionsRoundTripForAnySize) {
  for (const int64_t rows : {4, 36, 64}) {
    for (const int64_t columns : {1, 31, 33, 70}) {
      std::string numbers(rows * columns, '\0');
      std::iota(numbers.begin(), numbers.end(), 0);
      for (const Rearrangement rearrangement : {Rearrangement::kTransposed, Rearrangement::kPairs}) {
        EXPECT_EQ(
            Turned(true, rearrangement, Turned(false, rearrangement, numbers, rows, columns), rows, columns),
            numbers);
      }
    }
  }
}

}  // namespace
}  // namespace fsdpd
