#include "client/commands/field_docs.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsdpd {
namespace {

bool Has(const std::vector<FieldDoc>& docs, const std::string& name) {
  return std::any_of(docs.begin(), docs.end(), [&](const FieldDoc& doc) { return doc.name == name; });
}

TEST(FieldDocs, ExplainsSpec) {
  const absl::StatusOr<Explained> spec = ExplainField("");
  ASSERT_TRUE(spec.ok());
  EXPECT_TRUE(Has(spec->fields, "train") && Has(spec->fields, "parallel"));
}

TEST(FieldDocs, ExplainsField) {
  const absl::StatusOr<Explained> name = ExplainField("name");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->field.type, "string");
  EXPECT_NE(name->field.comment.find("DNS label of at most 40 characters"), std::string::npos);
  EXPECT_EQ(ExplainField("train.steps")->field.type, "integer");
  EXPECT_EQ(ExplainField("data.tokens[0].path")->field.name, "data.tokens.path");
  EXPECT_EQ(ExplainField("train.microBatch")->field.name, "train.micro_batch");
}

TEST(FieldDocs, JoinsLinesOfParagraph) {
  const std::string comment = ExplainField("priority")->field.comment;
  EXPECT_EQ(comment.find('\n'), std::string::npos) << comment;
  EXPECT_NE(comment.find("in the order of submission"), std::string::npos) << comment;
}

TEST(FieldDocs, AttachesTrailingCommentToItsField) {
  const std::string path = ExplainField("data.tokens[0].path")->field.comment;
  EXPECT_NE(path.find("PATH.idx"), std::string::npos) << path;
  const std::string weight = ExplainField("data.tokens.weight")->field.comment;
  EXPECT_EQ(weight.find("PATH.idx"), std::string::npos) << weight;
  EXPECT_NE(weight.find("Default 1."), std::string::npos) << weight;
}

TEST(FieldDocs, ExplainsMessagesAndEnums) {
  const absl::StatusOr<Explained> model = ExplainField("model");
  ASSERT_TRUE(model.ok());
  EXPECT_TRUE(Has(model->fields, "preset"));
  const absl::StatusOr<Explained> strategy = ExplainField("fsdp.strategy");
  ASSERT_TRUE(strategy.ok());
  EXPECT_TRUE(Has(strategy->values, "optim_grads_params"));
  EXPECT_FALSE(Has(strategy->values, "unspecified"));
}

// Regression: the list had all values of the field's type, including those that validation rejects.
TEST(FieldDocs, ListsValidEnumValues) {
  const absl::StatusOr<Explained> grads = ExplainField("precision.main_grads");
  ASSERT_TRUE(grads.ok());
  EXPECT_EQ(grads->values.size(), 2);
  EXPECT_TRUE(Has(grads->values, "fp32") && Has(grads->values, "bf16"));
  EXPECT_TRUE(Has(ExplainField("precision.moments")->values, "fp8"));
  EXPECT_FALSE(Has(ExplainField("precision.moments")->values, "fp16"));
  EXPECT_EQ(ExplainField("precision.compute")->values.size(), 4);
}

TEST(FieldDocs, ExplainsOutputFields) {
  EXPECT_TRUE(Has(ExplainField("job")->fields, "last_step"));
  EXPECT_TRUE(Has(ExplainField("job.waiting.code")->values, "queue_order"));
  EXPECT_TRUE(ExplainField("node.cordon.reason").ok());
}

TEST(FieldDocs, IgnoresCaseOfPath) {
  EXPECT_EQ(ExplainField("Job.waiting")->field.name, "job.waiting");
  EXPECT_EQ(ExplainField("TRAIN.MICRO_BATCH")->field.name, "train.micro_batch");
  EXPECT_EQ(ExplainField("Spec")->field.name, "spec");
}

TEST(FieldDocs, SuggestsSimilarField) {
  EXPECT_EQ(ExplainField("train.micro_bach").status().message(),
            "unknown field train.micro_bach; did you mean train.micro_batch?");
  EXPECT_EQ(ExplainField("data.ignored_token").status().message(),
            "unknown field data.ignored_token; renamed to data.ignore_index");
  EXPECT_EQ(ExplainField("name.x").status().message(), "unknown field name.x; name has no fields");
  EXPECT_FALSE(ExplainField("zzzzzzzz").ok());
}

}  // namespace
}  // namespace fsdpd
