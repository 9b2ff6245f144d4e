#include "fsdp/engine/bad_step.h"

#include <absl/strings/str_format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::BadStep Nonfinite(int64_t step) {
  v1::BadStep bad;
  bad.set_step(step);
  bad.set_kind(v1::BAD_STEP_KIND_NONFINITE);
  bad.set_loss(2.5);
  bad.set_grad_norm(7);
  bad.set_first_sample(12 * step - 12);
  bad.set_end_sample(12 * step);
  return bad;
}

v1::BadStep Spike(int64_t step) {
  v1::BadStep bad = Nonfinite(step);
  bad.set_kind(v1::BAD_STEP_KIND_SPIKE);
  bad.set_threshold(5);
  return bad;
}

TEST(BadStep, EndsTheRunByDefault) {
  TrainingState state;
  const absl::Status status = TakeBadStep(Spec(), Nonfinite(4), &state);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(),
              HasSubstr("not finite: loss 2.5, gradient norm 7 (samples 36 to 47); lower "));
  ASSERT_TRUE(BadStepOf(status).has_value());
  EXPECT_EQ(BadStepOf(status)->SerializeAsString(), Nonfinite(4).SerializeAsString());
  EXPECT_THAT(state.skipped_nonfinite, IsEmpty());
}

// The learning rate does not affect the loss of the first step.
TEST(BadStep, FirstStepBlamesLoadedWeights) {
  Spec spec;
  TrainingState state;
  EXPECT_THAT(TakeBadStep(spec, Nonfinite(1), &state).message(), HasSubstr("; lower "));
  spec.checkpoint.load = "/models/llama";
  EXPECT_THAT(
      TakeBadStep(spec, Nonfinite(1), &state).message(),
      AllOf(HasSubstr("; check the weights that the job started from (notes in the ranks' logs name "),
            HasSubstr("), lower optimizer.adamw.lr")));
  EXPECT_THAT(TakeBadStep(spec, Nonfinite(2), &state).message(), HasSubstr("; lower "));
}

TEST(BadStep, RequestsRewind) {
  Spec spec;
  spec.on_nonfinite = {StepAction::kRewind, 3};
  TrainingState state;
  const absl::Status status = TakeBadStep(spec, Nonfinite(4), &state);
  ASSERT_TRUE(BadStepOf(status).has_value());
  EXPECT_TRUE(BadStepOf(status)->rewind());
  EXPECT_EQ(BadStepOf(status)->end_sample(), 48);
}

TEST(BadStep, SurvivesAnnotated) {
  TrainingState state;
  const absl::Status status = Annotated(TakeBadStep(Spec(), Nonfinite(4), &state), "step 4: ");
  EXPECT_THAT(status.message(), HasSubstr("step 4: not finite"));
  EXPECT_EQ(BadStepOf(status)->step(), 4);
  EXPECT_FALSE(BadStepOf(absl::OutOfRangeError("not finite")).has_value());
}

TEST(BadStep, LimitsSkipsPerThousandSteps) {
  Spec spec;
  spec.on_nonfinite = {StepAction::kSkip, 3};
  spec.on_spike = {StepAction::kSkip, 1, 10, 128};
  TrainingState state;
  for (const int64_t step : {5, 6, 900}) EXPECT_TRUE(TakeBadStep(spec, Nonfinite(step), &state).ok()) << step;
  TrainingState full = state;
  const absl::Status status = TakeBadStep(spec, Nonfinite(1004), &full);
  EXPECT_THAT(status.message(),
              HasSubstr("3 of the last 1000 steps were already skipped, and train.on_nonfinite.max is 3"));
  EXPECT_FALSE(BadStepOf(status)->rewind());
  EXPECT_TRUE(TakeBadStep(spec, Nonfinite(1005), &state).ok());  // Step 5 is a thousand steps earlier.
  EXPECT_THAT(state.skipped_nonfinite, ElementsAre(6, 900, 1005));
  EXPECT_TRUE(TakeBadStep(spec, Spike(1006), &state).ok()) << "counted apart";
  EXPECT_THAT(TakeBadStep(spec, Spike(1007), &state).message(),
              HasSubstr("a spike: gradient norm 7 is above 5, 10 times the median of the last 128 steps"));
}

TEST(BadStep, KeepsNormsOfTheWindow) {
  Spec spec;
  TrainingState state;
  RecordNorm(spec, 1.0f, &state);
  EXPECT_THAT(state.grad_norms, IsEmpty());
  spec.on_spike = {StepAction::kSkip, 1, 10, 3};
  for (const float norm : {1.0f, 2.0f, 3.0f}) RecordNorm(spec, norm, &state);
  RecordNorm(spec, std::nullopt, &state);
  EXPECT_THAT(state.grad_norms, ElementsAre(2.0f, 3.0f, std::nullopt));
  spec.on_spike.window = 2;  // As in a run resumed from another's checkpoint.
  RecordNorm(spec, 4.0f, &state);
  EXPECT_THAT(state.grad_norms, ElementsAre(std::nullopt, 4.0f));
}

TEST(BadStep, DropsTheSignOfNan) {
  EXPECT_EQ(absl::StrFormat("%g", WithoutNanSign(-std::nan(""))), "nan");
  EXPECT_EQ(WithoutNanSign(-2.5), -2.5);
}

}  // namespace
}  // namespace fsdpd
