#include "coordinator/job/job_predictions.h"

#include <gtest/gtest.h>

#include "coordinator/testing/tiny_spec.h"
#include "fsdp/plan/prediction.h"

namespace fsdpd {
namespace {

std::shared_ptr<const v1::Job> JobOf(const std::string& id, int attempt, v1::JobSpec spec) {
  auto job = std::make_shared<v1::Job>();
  job->set_id(id);
  job->set_attempt(attempt);
  *job->mutable_resolved() = std::move(spec);
  return job;
}

v1::Prediction PredictionOf(const v1::JobSpec& spec) {
  const Plan plan = MakePlan(spec, 0);
  v1::Plan proto;
  AddPrediction(plan, DefaultProfile(DeviceKind::kCpu), false, &proto);
  return proto.prediction();
}

TEST(JobPredictions, ReturnsThePredictionOnceItIsMade) {
  JobPredictions predictions;
  const auto a = JobOf("a", 1, TinySpec(1, 2)), b = JobOf("b", 1, TinySpec(2, 2));
  predictions.Of({a, b});
  predictions.AwaitAll();
  const std::map<std::string, v1::Prediction> found = predictions.Of({a, b});
  ASSERT_EQ(found.size(), 2u);
  for (const auto& job : {a, b}) {
    EXPECT_EQ(found.at(job->id()).SerializeAsString(), PredictionOf(job->resolved()).SerializeAsString());
    EXPECT_GT(found.at(job->id()).step_seconds(), 0);
  }
}

TEST(JobPredictions, PredictsTheRequestedAttempt) {
  JobPredictions predictions;
  predictions.Of({JobOf("a", 1, TinySpec(2, 2))});
  predictions.AwaitAll();
  const auto fewer = JobOf("a", 2, TinySpec(1, 2));
  EXPECT_TRUE(predictions.Of({fewer}).empty()) << "the plan of all ranks does not apply";
  predictions.AwaitAll();
  EXPECT_EQ(predictions.Of({fewer}).at("a").SerializeAsString(),
            PredictionOf(fewer->resolved()).SerializeAsString());
}

TEST(JobPredictions, SpecWithoutPlanHasNoPredictionAndDoesNotBlock) {
  JobPredictions predictions;
  const auto none = JobOf("none", 1, {}), a = JobOf("a", 1, TinySpec());
  predictions.Of({none, a});
  predictions.AwaitAll();
  EXPECT_EQ(predictions.Of({none, a}).count("a"), 1u);
  EXPECT_EQ(predictions.Of({none, a}).count("none"), 0u);
  predictions.AwaitAll();
}

TEST(JobPredictions, DoubleStepTimeHalvesMfu) {
  v1::Prediction prediction;
  prediction.set_step_seconds(2);
  prediction.set_mfu(0.5);
  EXPECT_EQ(MfuOf(prediction, 2), 0.5);
  EXPECT_EQ(MfuOf(prediction, 4), 0.25);
  EXPECT_EQ(MfuOf(prediction, 0), 0) << "no step";
}

}  // namespace
}  // namespace fsdpd
