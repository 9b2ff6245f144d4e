#include "fsdp/plan/search/candidates.h"

#include <gtest/gtest.h>

#include <set>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

v1::JobSpec Job(int64_t nodes, int64_t ranks_per_node, int64_t global_batch) {
  v1::JobSpec job;
  job.set_name("job");
  job.mutable_model()->set_preset("llama3-8b");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(8192);
  job.mutable_train()->set_steps(1);
  job.mutable_train()->set_global_batch(global_batch);
  job.mutable_resources()->set_nodes(nodes);
  job.mutable_resources()->set_ranks_per_node(ranks_per_node);
  return job;
}

std::vector<v1::JobSpec> All(const v1::JobSpec& job, const std::vector<std::string>& held = {}) {
  std::vector<v1::JobSpec> ways;
  VisitCandidates(job, held, [&](const v1::JobSpec& way) {
    ways.push_back(way);
    return Visit::kContinue;
  });
  return ways;
}

TEST(Candidates, CoversEveryAxisWithoutDuplicates) {
  std::set<std::string> seen;
  std::set<int64_t> tensors, contexts, outers;
  std::set<v1::Strategy> strategies;
  for (const v1::JobSpec& way : All(Job(2, 4, 16))) {
    EXPECT_TRUE(seen.insert(way.SerializeAsString()).second) << way.ShortDebugString();
    tensors.insert(way.parallel().tensor());
    contexts.insert(way.parallel().context());
    outers.insert(way.fsdp().outer().size());
    strategies.insert(way.fsdp().strategy());
  }
  EXPECT_EQ(tensors, (std::set<int64_t>{0, 2, 4}));  // 0: unset, i.e. 1.
  EXPECT_EQ(contexts, (std::set<int64_t>{0, 2, 4, 8}));
  EXPECT_EQ(outers, (std::set<int64_t>{0, 2, 4, 8}));
  EXPECT_EQ(strategies.size(), 4u);
}

TEST(Candidates, VariesExpertParallelWithExperts) {
  v1::JobSpec job = Job(2, 4, 16);
  const auto experts_of = [&](int64_t tensor) {
    std::set<int64_t> found;
    for (const v1::JobSpec& way : All(job))
      if (way.parallel().tensor() == tensor) found.insert(way.parallel().expert());
    return found;
  };
  job.mutable_model()->mutable_llama();
  EXPECT_EQ(experts_of(0), (std::set<int64_t>{0}));
  job.mutable_model()->mutable_llama()->mutable_experts()->set_count(8);
  EXPECT_EQ(experts_of(0), (std::set<int64_t>{0, 2, 4}));
  EXPECT_EQ(experts_of(2), (std::set<int64_t>{0}));
  job.mutable_parallel()->set_expert(8);  // Spans both nodes.
  EXPECT_EQ(experts_of(0), (std::set<int64_t>{0, 2, 4, 8}));
  job.mutable_resources()->set_ranks_per_node(6);
  EXPECT_EQ(experts_of(0), (std::set<int64_t>{0, 2, 8}));
  job.mutable_resources()->set_ranks_per_node(4);
  for (const v1::JobSpec& way : All(job, {"parallel.expert"})) EXPECT_EQ(way.parallel().expert(), 8);
}

TEST(Candidates, VariesStagesAndChunksIfAllowed) {
  v1::JobSpec job = Job(2, 4, 32);
  EXPECT_EQ(WhyNoStages(job)->rule, "parallel_pipeline_not_timed");
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  EXPECT_FALSE(WhyNoStages(job).has_value());
  std::set<std::string> seen;
  std::set<std::pair<int64_t, int64_t>> stages;
  for (const v1::JobSpec& way : All(job)) {
    EXPECT_TRUE(seen.insert(way.SerializeAsString()).second) << way.ShortDebugString();
    const v1::Parallel& parallel = way.parallel();
    stages.emplace(parallel.pipeline(), parallel.pipeline_chunks());
    for (const Violation& violation : CheckJob(way)) {
      EXPECT_NE(violation.field, "parallel.pipeline") << violation.reason;
      EXPECT_NE(violation.field, "parallel.pipeline_chunks") << violation.reason;
      EXPECT_NE(violation.rule, "parallel_pipeline_chunks_micro_batches") << violation.reason;
    }
  }
  // 34 units; 0: unset.
  EXPECT_EQ(stages, (std::set<std::pair<int64_t, int64_t>>{{0, 0},
                                                           {2, 0},
                                                           {2, 2},
                                                           {2, 4},
                                                           {2, 8},
                                                           {2, 16},
                                                           {4, 0},
                                                           {4, 2},
                                                           {4, 4},
                                                           {4, 8},
                                                           {8, 0},
                                                           {8, 2},
                                                           {8, 4}}));
}

TEST(Candidates, VariesZeroBubbleIfAllowed) {
  v1::JobSpec job = Job(1, 8, 32);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  job.mutable_parallel()->set_pipeline(4);
  job.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
  std::set<v1::Strategy> deferring;
  int in_turns = 0;
  for (const v1::JobSpec& way : All(job)) {
    const bool defers_grads = way.parallel().pipeline_schedule() == v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
    in_turns += !defers_grads && way.parallel().pipeline() == 4;
    for (const Violation& violation : CheckJob(way))
      EXPECT_NE(violation.field, "parallel.pipeline_schedule") << violation.reason;
    if (!defers_grads) continue;
    EXPECT_GT(way.parallel().pipeline(), 1);
    EXPECT_LE(way.parallel().pipeline_chunks(), 1);
    deferring.insert(way.fsdp().strategy());
  }
  EXPECT_EQ(deferring, (std::set<v1::Strategy>{v1::STRATEGY_OPTIM, v1::STRATEGY_NO_SHARD}));
  EXPECT_GT(in_turns, 0);
  for (const v1::JobSpec& way : All(job, {"parallel.pipeline_schedule"})) {
    if (way.parallel().pipeline() <= 1) continue;
    EXPECT_EQ(way.parallel().pipeline_schedule(), v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
  }
}

TEST(Candidates, KeepsStageUnitsOnlyForTheirStages) {
  v1::JobSpec job = Job(1, 8, 32);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  job.mutable_parallel()->set_pipeline(2);
  for (const int units : {16, 18}) job.mutable_parallel()->add_stage_units(units);
  int as_written = 0;
  for (const v1::JobSpec& way : All(job)) {
    const bool same = way.parallel().pipeline() == 2 && way.parallel().pipeline_chunks() <= 1;
    EXPECT_EQ(way.parallel().stage_units_size(), same ? 2 : 0) << way.ShortDebugString();
    as_written += same;
  }
  EXPECT_GT(as_written, 0);
  for (const v1::JobSpec& way : All(job, {"parallel"}))
    EXPECT_EQ(way.parallel().SerializeAsString(), job.parallel().SerializeAsString());
}

TEST(Candidates, VisitsMicroBatchesInIncreasingOrder) {
  v1::JobSpec before;
  for (const v1::JobSpec& way : All(Job(1, 8, 64))) {
    v1::JobSpec shape = way, last = before;
    shape.mutable_train()->clear_micro_batch();
    last.mutable_train()->clear_micro_batch();
    if (shape.SerializeAsString() == last.SerializeAsString()) {
      EXPECT_GT(way.train().micro_batch(), before.train().micro_batch());
    }
    before = way;
  }
}

TEST(Candidates, SkipsLargerMicroBatchesOnRequest) {
  int ways = 0;
  VisitCandidates(Job(1, 8, 64), {}, [&](const v1::JobSpec& way) {
    EXPECT_EQ(way.train().micro_batch(), 1);
    ++ways;
    return Visit::kSkipLarger;
  });
  EXPECT_GT(ways, 10);
}

TEST(Candidates, MicroBatchesDivideGlobalBatch) {
  for (const v1::JobSpec& way : All(Job(2, 8, 48))) {
    EXPECT_EQ(way.train().global_batch(), 48);
    for (const Violation& violation : CheckJob(way))
      EXPECT_NE(violation.rule, "global_batch_divisible") << violation.reason;
  }
}

TEST(Candidates, KeepsHeldFieldsAsWritten) {
  v1::JobSpec job = Job(1, 8, 64);
  job.mutable_train()->set_micro_batch(4);
  job.mutable_parallel()->set_tensor(2);
  job.mutable_fsdp()->mutable_outer()->set_size(2);
  job.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
  for (const v1::JobSpec& way : All(job, {"train.micro_batch", "parallel.tensor", "fsdp"})) {
    EXPECT_EQ(way.train().micro_batch(), 4);
    EXPECT_EQ(way.parallel().tensor(), 2);
    EXPECT_EQ(way.fsdp().SerializeAsString(), job.fsdp().SerializeAsString());
  }
  for (const v1::JobSpec& way : All(job)) EXPECT_EQ(way.fsdp().recompute(), v1::RECOMPUTE_UNSPECIFIED);
}

TEST(Candidates, SplitsSixRanksPerNode) {
  for (const v1::JobSpec& way : All(Job(4, 6, 96))) {
    const int64_t context = std::max<int64_t>(way.parallel().context(), 1);
    const int64_t together = context * std::max<int64_t>(way.parallel().tensor(), 1);
    EXPECT_TRUE(6 % together == 0 || together % 6 == 0) << together;
  }
}

}  // namespace
}  // namespace fsdpd
