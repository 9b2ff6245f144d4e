#include "fsdp/engine/testing/test_job.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace fsdpd {

v1::JobSpec TestJob() {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      R"({"name": "test",
          "model": {"llama": {"vocab_size": 37, "hidden_size": 20, "intermediate_size": 36, "layers": 2, "heads": 2,
                              "kv_heads": 1}},
          "data": {"synthetic": {"vocab": 7}, "sequence_length": 8},
          "train": {"steps": 6, "micro_batch": 12, "global_batch": 12, "seed": 5},
          "optimizer": {"adamw": {"lr": 1e-2}},
          "precision": {"compute": "DTYPE_FP32"},
          "fsdp": {"strategy": "STRATEGY_NO_SHARD", "recompute": "RECOMPUTE_NONE"},
          "resources": {"nodes": 1, "ranks_per_node": 1, "device": "DEVICE_CPU"}})",
      &job);
  FSDPD_CHECK(parsed.ok());
  return job;
}

v1::JobSpec Over(v1::JobSpec job, const TestMesh& mesh, int world, int micro_batches) {
  job.mutable_train()->set_micro_batch(job.train().global_batch() / world / micro_batches);
  job.mutable_resources()->set_ranks_per_node(world);
  job.mutable_fsdp()->set_strategy(mesh.strategy);
  if (mesh.outer_size > 1) {
    job.mutable_fsdp()->mutable_outer()->set_size(mesh.outer_size);
    job.mutable_fsdp()->mutable_outer()->set_strategy(mesh.outer_strategy);
  }
  return job;
}

LocalJobResult Train(const v1::JobSpec& job, const LocalJobOptions& options) {
  const auto plan = AcceptedPlan(job);
  FSDPD_CHECK_OK(plan.status());
  auto result = RunLocalJob(*plan, options);
  FSDPD_CHECK_OK(result.status());
  return *std::move(result);
}

void ExpectSame(const LocalJobResult& expected, const LocalJobResult& actual, double relative) {
  ASSERT_EQ(expected.reports[0].size(), actual.reports[0].size());
  ExpectSameRest(expected, actual, relative);
}

void ExpectSameRest(const LocalJobResult& whole, const LocalJobResult& rest, double relative) {
  ASSERT_FALSE(rest.reports[0].empty());
  ASSERT_GE(whole.reports[0].size(), rest.reports[0].size());
  const size_t before = whole.reports[0].size() - rest.reports[0].size();
  for (size_t s = 0; s < rest.reports[0].size(); ++s) {
    const v1::StepReport& one = whole.reports[0][before + s];
    const v1::StepReport& other = rest.reports[0][s];
    EXPECT_EQ(other.step(), one.step());
    EXPECT_EQ(other.skipped(), one.skipped()) << "step " << one.step();
    if (one.skipped()) continue;  // Its values are undefined.
    EXPECT_NEAR(other.loss(), one.loss(), relative * one.loss()) << "step " << one.step();
    EXPECT_NEAR(other.grad_norm(), one.grad_norm(), relative * 10 * one.grad_norm()) << "step " << one.step();
  }
  ASSERT_EQ(whole.weights.size(), rest.weights.size());
  if (relative == 0) {
    EXPECT_EQ(whole.weights, rest.weights);
    return;
  }
  double difference = 0, size = 0;
  for (size_t i = 0; i < whole.weights.size(); ++i) {
    difference += std::pow(whole.weights[i] - rest.weights[i], 2);
    size += std::pow(whole.weights[i], 2);
  }
  EXPECT_LE(std::sqrt(difference), relative * 10 * std::sqrt(size));
}

int ExpectSameEvaluations(const LocalJobResult& expected, const LocalJobResult& actual, double relative) {
  EXPECT_EQ(expected.reports[0].size(), actual.reports[0].size());
  int evaluations = 0;
  for (size_t s = 0; s < std::min(expected.reports[0].size(), actual.reports[0].size()); ++s) {
    const v1::StepReport &one = expected.reports[0][s], &other = actual.reports[0][s];
    EXPECT_EQ(one.has_evaluation(), other.has_evaluation()) << "step " << one.step();
    if (!one.has_evaluation()) continue;
    ++evaluations;
    const double loss = one.evaluation().loss();
    EXPECT_EQ(one.evaluation().tokens(), other.evaluation().tokens()) << "step " << one.step();
    EXPECT_NEAR(other.evaluation().loss(), loss, relative * loss) << "step " << one.step();
  }
  return evaluations;
}

}  // namespace fsdpd
