#include "fsdp/checkpoint/job/origin_check.h"

#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kJob[] = R"({"name": "test", "data": {"synthetic": {}, "sequence_length": 8},
    "model": {"llama": {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "layers": 1, "heads": 2}},
    "train": {"steps": 6, "global_batch": 12, "seed": 5},
    "resources": {"device": "DEVICE_CPU"}})";

Spec SpecOf(const std::string& json) {
  v1::JobSpec job;
  FSDPD_CHECK(google::protobuf::util::JsonStringToMessage(json, &job).ok());
  const auto plan = AcceptedPlan(job);
  FSDPD_CHECK_OK(plan.status());
  return plan->spec;
}

OriginDifferences Of(const std::string& from, const std::string& to) {
  return CompareSpec(absl::StrReplaceAll(kJob, {{from, to}}), SpecOf(kJob));
}

TEST(OriginCheck, SameSpecHasNoDifferences) {
  EXPECT_THAT(Of("", "").model, IsEmpty());
  EXPECT_THAT(Of("", "").run, IsEmpty());
  EXPECT_THAT(CompareSpec("", SpecOf(kJob)).run, IsEmpty());
}

TEST(OriginCheck, ModelDifferenceIsNotRunDifference) {
  const OriginDifferences differences = Of(R"("heads": 2)", R"("heads": 4, "rope_theta": 500000)");
  EXPECT_THAT(differences.model,
              ElementsAre("heads: 4 there, and 2 in this job", "kv_heads: 4 there, and 2 in this job",
                          "head_size: 2 there, and 4 in this job",
                          "rope_theta: 500000 there, and 10000 in this job"));
  EXPECT_THAT(differences.run, IsEmpty());
}

TEST(OriginCheck, ComparesTokenFilesByName) {
  EXPECT_THAT(CompareData({"data.tokens[0].path /a = 8 bytes, hash 1", "data.tokens[1].path /b = 9 bytes"},
                          {"data.tokens[0].path /c = 1 bytes", "data.tokens[1].path /a = 8 bytes, hash 2",
                           "data.tokens[2].path /b = 9 bytes"}),
              ElementsAre("/a has changed (was 8 bytes, hash 1, now 8 bytes, hash 2)"));
  EXPECT_THAT(CompareData({}, {"data.tokens[0].path /a = 8 bytes"}), IsEmpty());
}

TEST(OriginCheck, RunDifferenceIsNotModelDifference) {
  EXPECT_THAT(Of(R"("seed": 5)", R"("seed": 6)").run, ElementsAre("train.seed: 6 there, and 5 here"));
  EXPECT_THAT(Of(R"("synthetic": {})", R"("tokens": [{"path": "/a"}, {"path": "/b"}])").run,
              ElementsAre("data: /a, /b there, and synthetic tokens here"));
  EXPECT_THAT(Of(R"("sequence_length": 8)", R"("sequence_length": 16)").run,
              ElementsAre("data.sequence_length: 16 there, and 8 here"));
  const OriginDifferences sgd = Of(R"("name": "test")", R"("name": "x", "optimizer": {"sgd": {"lr": 1}})");
  EXPECT_THAT(sgd.run, ElementsAre("optimizer: sgd there, and adamw here"));
  EXPECT_THAT(sgd.model, IsEmpty());
}

// A conversion knows only the model, so its spec says nothing of data, seeds and optimizers, not even by
// defaults.
TEST(OriginCheck, SpecWithOnlyModelHasNoRunDifferences) {
  constexpr char kModel[] = R"({"model": {"llama": {"vocab_size": 16, "hidden_size": 8,
      "intermediate_size": 12, "layers": 1, "heads": 4}}})";
  const OriginDifferences differences = CompareSpec(kModel, SpecOf(kJob));
  EXPECT_THAT(differences.run, IsEmpty());
  EXPECT_THAT(differences.model, ::testing::Contains("heads: 4 there, and 2 in this job"));
}

// Written by a newer build, or by another program.
TEST(OriginCheck, ReportsUnreadableSpec) {
  EXPECT_THAT(CompareSpec("{", SpecOf(kJob)).run, ElementsAre(HasSubstr("cannot be parsed")));
  EXPECT_THAT(Of(R"("name": "test")", R"("name": "test", "new_field": {"a": [1]})").run, IsEmpty());
  for (const char* model : {R"("heads": 0)", R"("heads": -3)", R"("heads": 3)"}) {
    const OriginDifferences differences = Of(R"("heads": 2)", model);
    EXPECT_THAT(differences.run, ElementsAre(HasSubstr("unknown model"))) << model;
    EXPECT_THAT(differences.model, IsEmpty());
  }
  EXPECT_THAT(CompareSpec(R"({"model": {"preset": "llama9-1q"}})", SpecOf(kJob)).model, IsEmpty());
}

constexpr char kConfig[] = R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 12,
  "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 16, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 77, "eos_token_id": 3})";

TEST(OriginCheck, NamesDifferingFieldsOfConfig) {
  const TempDir dir;
  const ModelConfig job = SpecOf(kJob).model;
  const auto of = [&](const std::string& from, const std::string& to) {
    WriteFileOf(dir.File("config.json"), absl::StrReplaceAll(kConfig, {{from, to}}));
    const auto differences = CompareHfConfig(dir.path(), job);
    EXPECT_TRUE(differences.ok() && differences->has_value()) << differences.status();
    return **differences;
  };
  EXPECT_EQ(*CompareHfConfig(dir.path(), job), std::nullopt);
  EXPECT_THAT(of("", ""), IsEmpty());
  EXPECT_THAT(of("1e-5", "1e-6, \"tie_word_embeddings\": true, \"rope_theta\": 500000.0"),
              ElementsAre("rope_theta: 500000 there, and 10000 in this job",
                          "norm_epsilon: 1e-06 there, and 1e-05 in this job",
                          "tied_embeddings: true there, and false in this job"));
  EXPECT_THAT(of("\"llama\"", "\"mamba\""), ElementsAre(HasSubstr("model_type 'mamba' is not supported")));
  EXPECT_THAT(of("\"vocab_size\": 16", "\"hidden_act\": \"relu\", \"vocab_size\": 16"),
              ElementsAre(HasSubstr("hidden_act 'relu'")));
  EXPECT_THAT(of("\"num_attention_heads\": 2", "\"num_attention_heads\": 3"),
              ElementsAre(HasSubstr("not those of a valid model")));
}

}  // namespace
}  // namespace fsdpd
