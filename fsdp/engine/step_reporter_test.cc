// Reports and traces of jobs that train.
#include "fsdp/engine/step_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/rank/trace_file.h"
#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

const TestMesh kOptimGradsParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

v1::JobSpec TwoRankJob(int64_t steps) {
  v1::JobSpec job = Over(TestJob(), kOptimGradsParams, 2, 3);
  job.mutable_train()->set_steps(steps);
  return job;
}

TEST(StepReporter, ReportsEveryStep) {
  const LocalJobResult result = Train(Over(TestJob(), kOptimGradsParams, 2));
  for (int rank : {0, 1}) {
    ASSERT_EQ(result.reports[rank].size(), 6u);
    for (int s = 0; s < 6; ++s) {
      const v1::StepReport& report = result.reports[rank][s];
      EXPECT_EQ(report.step(), s + 1);
      EXPECT_EQ(report.tokens(), 12 * 8);
      EXPECT_GT(report.step_seconds(), 0);
      EXPECT_GT(report.compute_seconds(), 0);
      EXPECT_LE(report.compute_seconds(), report.step_seconds() * 1.001);
      EXPECT_GT(report.memory().arena_bytes(), 0);
      ASSERT_EQ(report.ops_size(), 3);
      EXPECT_EQ(report.ops(0).op(), v1::COMM_OP_ALL_GATHER);
      EXPECT_EQ(report.ops(0).count(), 4 + 2);  // Four units in forward, and layers again in backward.
      EXPECT_EQ(report.ops(1).op(), v1::COMM_OP_REDUCE_SCATTER);
      EXPECT_EQ(report.ops(1).count(), 4);
      EXPECT_EQ(report.ops(2).op(), v1::COMM_OP_ALL_REDUCE);
      EXPECT_EQ(report.ops(2).count(), 1);
      for (const v1::OpTime& op : report.ops()) {
        EXPECT_GT(op.bytes(), 0);
        EXPECT_LE(op.exposed_seconds(), op.seconds() * 1.001);
      }
      EXPECT_LE(report.exposed_seconds(), (report.step_seconds() - report.compute_seconds()) * 1.001);
    }
  }
}

TEST(StepReporter, ReportsOuterCommunication) {
  const LocalJobResult result = Train(Over(TestJob(), kHfsdp, 4, 3));
  const v1::StepReport& report = result.reports[3].back();
  ASSERT_EQ(report.ops_size(), 5);
  EXPECT_EQ(report.ops(1).op(), v1::COMM_OP_REDUCE_SCATTER);
  EXPECT_EQ(report.ops(1).count(), 4 * 3);  // Each micro-batch.
  EXPECT_EQ(report.ops(3).op(), v1::COMM_OP_OUTER_REDUCE);
  EXPECT_EQ(report.ops(3).count(), 4);  // Once per step, as the next.
  EXPECT_EQ(report.ops(4).op(), v1::COMM_OP_OUTER_GATHER);
  EXPECT_EQ(report.ops(4).count(), 4);
  EXPECT_GT(report.ops(3).bytes(), 0);
}

TEST(StepReporter, LastTimelineHasEveryInstruction) {
  const LocalJobResult result = Train(TwoRankJob(2));
  ASSERT_EQ(result.timelines.size(), 2u);
  std::set<std::string> names;
  for (const Timeline::Slice& slice : result.timelines[1].slices) {
    names.insert(slice.name);
    EXPECT_GE(slice.seconds, 0);
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"ForwardBackward head mb 2", "Backward layer.1 mb 0",
                                              "Gather embedding", "Reduce layer.0 mb 0", "Norm"}));
}

// The times of lanes place traced steps in sequence, even if the next step is submitted before.
class TracedSteps : public ::testing::TestWithParam<bool> {};

TEST_P(TracedSteps, AreConsecutive) {
  const TempDir dir;
  std::vector<std::unique_ptr<StepTraces>> traces;
  LocalJobOptions options;
  options.run_ahead_on_cpu = GetParam();
  for (int rank = 0; rank < 2; ++rank) {
    StepTraces::Options of;
    of.directory = dir.path();
    of.rank = rank;
    of.steps = {2, 3, 6};
    traces.push_back(std::make_unique<StepTraces>(std::move(of)));
    options.traces.push_back(traces.back().get());
  }
  const LocalJobResult traced = Train(TwoRankJob(6), options);
  ExpectSame(Train(TwoRankJob(6)), traced, 0);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(traces[rank]->AwaitWritten(absl::Minutes(1)));
    const auto file = [&](int step) { return dir.File(TraceFileName(step, rank)); };
    for (const int step : {1, 4, 5}) EXPECT_NE(access(file(step).c_str(), F_OK), 0) << step;
    int64_t last = 0;
    for (const int step : {2, 3, 6}) {
      const YAML::Node trace = YAML::LoadFile(file(step));
      // The first and last instruction on the compute lane, which belong to this step only.
      double begin = 1e18, end = 0;
      for (const YAML::Node& event : trace["traceEvents"]) {
        if (event["ph"].as<std::string>() != "X" || event["cat"].as<std::string>() == "step") continue;
        EXPECT_EQ(event["args"]["step"].as<int>(), step);
        if (event["tid"].as<int>() != 0) continue;
        begin = std::min(begin, event["ts"].as<double>());
        end = std::max(end, event["ts"].as<double>() + event["dur"].as<double>());
      }
      const auto origin = trace["beginUnixNanos"].as<int64_t>();
      EXPECT_GE(origin + static_cast<int64_t>(begin * 1000), last) << step;
      last = origin + static_cast<int64_t>(end * 1000);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RunAhead, TracedSteps, ::testing::Bool());

}  // namespace
}  // namespace fsdpd
