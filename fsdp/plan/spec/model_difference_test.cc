#include "fsdp/plan/spec/model_difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

LlamaConfig Llama() {
  LlamaConfig llama;
  llama.vocab_size = 16;
  llama.hidden_size = 8;
  llama.intermediate_size = 12;
  llama.layers = 1;
  llama.heads = llama.kv_heads = 2;
  llama.head_size = 4;
  return llama;
}

std::vector<std::string> OfLlama(const std::function<void(LlamaConfig*)>& change) {
  LlamaConfig theirs = Llama();
  change(&theirs);
  return ModelDifferences(Llama(), theirs);
}

TEST(ModelDifference, NamesEachFieldThatMakesAnotherModel) {
  EXPECT_THAT(OfLlama([](LlamaConfig*) {}), IsEmpty());
  const std::vector<std::pair<std::string, std::function<void(LlamaConfig*)>>> changes = {
      {"vocab_size: 17 there, and 16 in this job", [](LlamaConfig* c) { c->vocab_size = 17; }},
      {"hidden_size: 4 there, and 8 in this job", [](LlamaConfig* c) { c->hidden_size = 4; }},
      {"intermediate_size: 4 there, and 12 in this job", [](LlamaConfig* c) { c->intermediate_size = 4; }},
      {"layers: 4 there, and 1 in this job", [](LlamaConfig* c) { c->layers = 4; }},
      {"heads: 4 there, and 2 in this job", [](LlamaConfig* c) { c->heads = 4; }},
      {"kv_heads: 1 there, and 2 in this job", [](LlamaConfig* c) { c->kv_heads = 1; }},
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

TEST(ModelDifference, OfScalingIsOneWhereBothScale) {
  LlamaConfig job = Llama(), theirs = Llama();
  job.rope_scaling.low_freq_factor = 2;
  EXPECT_THAT(ModelDifferences(job, theirs), IsEmpty()) << "of a scaling that is not";
  job.rope_scaling = {8, 1, 4, 8192};
  theirs.rope_scaling = {8, 2, 5, 4096};
  EXPECT_THAT(ModelDifferences(job, theirs),
              ElementsAre("rope_scaling.low_freq_factor: 2 there, and 1 in this job",
                          "rope_scaling.high_freq_factor: 5 there, and 4 in this job",
                          "rope_scaling.original_positions: 4096 there, and 8192 in this job"));
}

TEST(ModelDifference, OfGpt2AndOfFamilies) {
  Gpt2Config job;
  job.vocab_size = 16, job.hidden_size = 8, job.intermediate_size = 32, job.layers = 1, job.heads = 2;
  job.positions = 32;
  EXPECT_THAT(ModelDifferences(job, job), IsEmpty());
  Gpt2Config theirs = job;
  theirs.heads = 4;
  theirs.positions = 16;
  theirs.norm_epsilon = 1e-6;
  theirs.tied_embeddings = false;
  EXPECT_THAT(ModelDifferences(job, theirs),
              ElementsAre("heads: 4 there, and 2 in this job", "positions: 16 there, and 32 in this job",
                          "norm_epsilon: 1e-06 there, and 1e-05 in this job",
                          "untied_embeddings: true there, and false in this job"));
  EXPECT_THAT(ModelDifferences(job, Llama()), ElementsAre("model: 'llama' there, and 'gpt2' in this job"));
}

TEST(ModelDifference, OfAPluginIsInItsArguments) {
  PluginConfig job, theirs;
  job.path = "/here.so";
  theirs.path = "/there.so";
  EXPECT_THAT(ModelDifferences(job, theirs), IsEmpty());
  theirs.args = "wide";
  EXPECT_THAT(ModelDifferences(job, theirs), ElementsAre("plugin.args: 'wide' there, and '' in this job"));
}

}  // namespace
}  // namespace fsdpd
