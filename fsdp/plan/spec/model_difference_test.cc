#include "fsdp/plan/spec/model_difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> OfLlama(const std::function<void(LlamaConfig*)>& change) {
  LlamaConfig theirs = SmallLlama();
  change(&theirs);
  return ModelDifferences(SmallLlama(), theirs);
}

TEST(ModelDifference, ListsEachDifferingField) {
  EXPECT_THAT(OfLlama([](LlamaConfig*) {}), IsEmpty());
  const std::vector<std::pair<std::string, std::function<void(LlamaConfig*)>>> changes = {
      {"vocab_size: 17 there, and 32 in this job", [](LlamaConfig* c) { c->vocab_size = 17; }},
      {"hidden_size: 4 there, and 8 in this job", [](LlamaConfig* c) { c->hidden_size = 4; }},
      {"intermediate_size: 4 there, and 12 in this job", [](LlamaConfig* c) { c->intermediate_size = 4; }},
      {"layers: 4 there, and 2 in this job", [](LlamaConfig* c) { c->layers = 4; }},
      {"heads: 4 there, and 2 in this job", [](LlamaConfig* c) { c->heads = 4; }},
      {"kv_heads: 2 there, and 1 in this job", [](LlamaConfig* c) { c->kv_heads = 2; }},
      {"head_size: 8 there, and 4 in this job", [](LlamaConfig* c) { c->head_size = 8; }},
      {"rope_theta: 500000 there, and 10000 in this job", [](LlamaConfig* c) { c->rope_theta = 500000; }},
      {"norm_epsilon: 1e-06 there, and 1e-05 in this job", [](LlamaConfig* c) { c->norm_epsilon = 1e-6; }},
      {"tied_embeddings: true there, and false in this job",
       [](LlamaConfig* c) { c->tied_embeddings = true; }},
      {"qk_norm: true there, and false in this job", [](LlamaConfig* c) { c->qk_norm = true; }},
      {"attention_bias: true there, and false in this job", [](LlamaConfig* c) { c->attention_bias = true; }},
      {"rope_scaling.factor: 8 there, and 1 in this job", [](LlamaConfig* c) { c->rope_scaling.factor = 8; }},
  };
  for (const auto& [line, change] : changes) EXPECT_THAT(OfLlama(change), ElementsAre(line));
  EXPECT_THAT(OfLlama([](LlamaConfig* c) { c->positions = 77; }), IsEmpty()) << "a limit, and no number";
}

TEST(ModelDifference, ComparesRopeScalingIfBothScale) {
  LlamaConfig job = SmallLlama(), theirs = SmallLlama();
  job.rope_scaling.low_freq_factor = 2;
  EXPECT_THAT(ModelDifferences(job, theirs), IsEmpty()) << "of a scaling that is not";
  job.rope_scaling = {8, 1, 4, 8192};
  theirs.rope_scaling = {8, 2, 5, 4096};
  EXPECT_THAT(ModelDifferences(job, theirs),
              ElementsAre("rope_scaling.low_freq_factor: 2 there, and 1 in this job",
                          "rope_scaling.high_freq_factor: 5 there, and 4 in this job",
                          "rope_scaling.original_positions: 4096 there, and 8192 in this job"));
}

TEST(ModelDifference, ComparesLatentAttentionAndYarnIfBothUseThem) {
  LlamaConfig job = SmallDeepSeek(), theirs = SmallDeepSeek();
  EXPECT_THAT(ModelDifferences(job, theirs), IsEmpty());
  job.rope_scaling = {8, 1, 4, 8192, /*yarn=*/true};
  theirs.rope_scaling = {8, 1, 4, 8192, /*yarn=*/true, /*mscale=*/0.7, /*mscale_all_dim=*/0.5};
  theirs.latent = {6, 0, 4, 2, 5, /*interleaved=*/false};
  EXPECT_THAT(ModelDifferences(job, theirs),
              ElementsAre("rope_scaling.yarn.mscale: 0.7 there, and 1 in this job",
                          "rope_scaling.yarn.mscale_all_dim: 0.5 there, and 0 in this job",
                          "latent_attention.query_rank: 0 there, and 5 in this job",
                          "latent_attention.value_head_size: 5 there, and 3 in this job",
                          "latent_attention.interleaved: false there, and true in this job"));
  theirs = job;
  theirs.latent = {};
  EXPECT_THAT(ModelDifferences(job, theirs),
              ElementsAre("latent_attention.rank: 0 there, and 6 in this job"));
}

TEST(ModelDifference, ComparesGpt2AndFamilies) {
  const Gpt2Config job = SmallGpt2();
  EXPECT_THAT(ModelDifferences(job, job), IsEmpty());
  Gpt2Config theirs = job;
  theirs.heads = 4;
  theirs.positions = 32;
  theirs.norm_epsilon = 1e-6;
  theirs.tied_embeddings = false;
  EXPECT_THAT(ModelDifferences(job, theirs),
              ElementsAre("heads: 4 there, and 2 in this job", "positions: 32 there, and 16 in this job",
                          "norm_epsilon: 1e-06 there, and 1e-05 in this job",
                          "untied_embeddings: true there, and false in this job"));
  EXPECT_THAT(ModelDifferences(job, SmallLlama()),
              ElementsAre("model: 'llama' there, and 'gpt2' in this job"));
}

TEST(ModelDifference, ComparesPluginArguments) {
  PluginConfig job, theirs;
  job.path = "/here.so";
  theirs.path = "/there.so";
  EXPECT_THAT(ModelDifferences(job, theirs), IsEmpty());
  theirs.args = "wide";
  EXPECT_THAT(ModelDifferences(job, theirs), ElementsAre("plugin.args: 'wide' there, and '' in this job"));
}

}  // namespace
}  // namespace fsdpd
