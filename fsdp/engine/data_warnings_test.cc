#include "fsdp/engine/data_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Spec MaskedSpec() {
  Spec spec;
  spec.steps = 6;
  spec.data.tokens = {{"a.u8"}, {"b.u8", 1, TokenType::kU8, "b.mask"}};
  spec.data.validation = {{"c.u8"}};
  return spec;
}

StepData Step(int64_t step, int64_t targets) {
  StepData data;
  data.step = step;
  data.targets = targets;
  data.tokens_read = 100;
  return data;
}

TEST(DataWarnings, NoWarningWithTargets) {
  DataWarnings warnings(MaskedSpec(), 0);
  for (int64_t step = 1; step <= 6; ++step) {
    StepData data = Step(step, 1);
    data.evaluation_targets = 1;
    EXPECT_THAT(warnings.Take(data), IsEmpty());
  }
}

TEST(DataWarnings, WarnsOfStepsWithoutTargets) {
  DataWarnings warnings(MaskedSpec(), 2);
  EXPECT_THAT(warnings.Take(Step(3, 5)), IsEmpty());
  EXPECT_THAT(
      warnings.Take(Step(4, 0)),
      ElementsAre("step 4 has no targets, so loss and gradient are 0 (excluded by data.tokens[].mask)"));
  EXPECT_THAT(warnings.Take(Step(5, 0)), IsEmpty());
  EXPECT_THAT(warnings.Take(Step(6, 0)), ElementsAre("3 of the 4 steps since step 3 had no targets"));
}

TEST(DataWarnings, WarnsOnceOfOneStepWithoutTargets) {
  DataWarnings warnings(MaskedSpec(), 4);
  EXPECT_THAT(warnings.Take(Step(5, 5)), IsEmpty());
  EXPECT_EQ(warnings.Take(Step(6, 0)).size(), 1u);
}

TEST(DataWarnings, WarnsOfEvaluationWithoutTargets) {
  Spec spec = MaskedSpec();
  spec.data.ignore_index = 0;
  DataWarnings warnings(spec, 0);
  StepData data = Step(2, 5);
  data.evaluation_targets = 0;
  EXPECT_THAT(warnings.Take(data),
              ElementsAre("the evaluation after step 2 has no targets, so its loss is meaningless "
                          "(excluded by data.ignore_index)"));
  data.step = 4;
  EXPECT_THAT(warnings.Take(data), IsEmpty());
}

TEST(DataWarnings, WarnsAtLastStepIfNoDocumentEnds) {
  Spec spec = MaskedSpec();
  spec.data.document_end_token = 7;
  DataWarnings warnings(spec, 0);
  for (int64_t step = 1; step <= 5; ++step) EXPECT_THAT(warnings.Take(Step(step, 5)), IsEmpty());
  EXPECT_THAT(warnings.Take(Step(6, 5)),
              ElementsAre("none of the 600 tokens read is 7 (data.document_end_token), so each sample is one "
                          "document"));
}

// A resumed attempt reads too little to conclude anything.
TEST(DataWarnings, NoDocumentWarningAfterResume) {
  Spec spec = MaskedSpec();
  spec.data.document_end_token = 7;
  DataWarnings warnings(spec, 4);
  for (int64_t step = 5; step <= 6; ++step) EXPECT_THAT(warnings.Take(Step(step, 5)), IsEmpty());
}

TEST(DataWarnings, WarnsAfterLongestDocument) {
  Spec spec = MaskedSpec();
  spec.data.document_end_token = 7;
  DataWarnings warnings(spec, 0);
  StepData data = Step(1, 5);
  data.tokens_read = DataWarnings::kLongestDocument - 1;
  EXPECT_THAT(warnings.Take(data), IsEmpty());
  data.step = 2;
  EXPECT_EQ(warnings.Take(data).size(), 1u);
  data.step = 3;
  EXPECT_THAT(warnings.Take(data), IsEmpty());
}

TEST(DataWarnings, NoWarningOnceADocumentEnded) {
  Spec spec = MaskedSpec();
  spec.data.document_end_token = 7;
  DataWarnings warnings(spec, 4);
  StepData data = Step(5, 5);
  data.document_ends = 1;
  EXPECT_THAT(warnings.Take(data), IsEmpty());
  EXPECT_THAT(warnings.Take(Step(6, 5)), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
