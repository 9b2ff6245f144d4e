// Parity: a job in every strategy, mesh and communication schedule gives the same losses and weights as one
// unsharded rank, bit for bit if sums have the same order. Ranks are threads; everything else is the code of
// rank processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kOptim{"optim", v1::STRATEGY_OPTIM};
const TestMesh kOptimGrads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
const TestMesh kOptimGradsParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
const TestMesh kHsdpOptimGrads{"hsdp_optim_grads", v1::STRATEGY_OPTIM_GRADS, 2, v1::STRATEGY_NO_SHARD};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

constexpr double kRoundOff = 1e-5;

struct Case {
  TestMesh mesh;
  int world = 1;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const TestMesh& mesh : {kNoShard, kOptim, kOptimGrads, kOptimGradsParams}) {
    for (const int world : {1, 2, 4}) cases.push_back({mesh, world});
  }
  for (const TestMesh& mesh : {kHsdp, kHsdpOptimGrads, kHfsdp}) {
    for (const int world : {2, 4}) cases.push_back({mesh, world});
  }
  return cases;
}

class Parity : public ::testing::TestWithParam<std::tuple<Case, int, double>> {
 protected:
  // One unsharded rank; once per clip norm.
  static const LocalJobResult& Alone(const v1::JobSpec& job) {
    static auto* const results = new std::map<std::string, LocalJobResult>();
    auto found = results->find(job.SerializeAsString());
    if (found == results->end()) found = results->emplace(job.SerializeAsString(), Train(job)).first;
    return found->second;
  }
};

TEST_P(Parity, ShardedMatchesUnsharded) {
  const auto& [over, micro_batches, clip_norm] = GetParam();
  v1::JobSpec job = TestJob();
  job.mutable_optimizer()->set_clip_norm(clip_norm);
  const LocalJobResult& expected = Alone(job);
  const LocalJobResult actual = Train(Over(job, over.mesh, over.world, micro_batches));
  ExpectSame(expected, actual, kRoundOff);
  EXPECT_LT(expected.reports[0].back().loss(), expected.reports[0].front().loss());  // Training works.
  if (clip_norm > 0) {
    EXPECT_GT(expected.reports[0].front().grad_norm(), clip_norm);  // Clipping was active.
  }
  for (const std::vector<v1::StepReport>& rank : actual.reports) {
    for (size_t s = 0; s < rank.size(); ++s) {
      EXPECT_EQ(rank[s].loss(), actual.reports[0][s].loss());
      EXPECT_EQ(rank[s].grad_norm(), actual.reports[0][s].grad_norm());
    }
  }
}

std::string NameOfCase(const ::testing::TestParamInfo<Parity::ParamType>& info) {
  const auto& [over, micro_batches, clip_norm] = info.param;
  return over.mesh.name + "_world" + std::to_string(over.world) + "_mb" + std::to_string(micro_batches) +
         (clip_norm > 0 ? "_clip" : "");
}

INSTANTIATE_TEST_SUITE_P(Worlds, Parity,
                         ::testing::Combine(::testing::ValuesIn(Cases()), ::testing::Values(1, 3),
                                            ::testing::Values(0.0, 0.5)),
                         NameOfCase);

TEST(Parity, IndivisibleWorldSize) {
  v1::JobSpec job = TestJob();
  job.mutable_train()->set_global_batch(9);
  job.mutable_train()->set_micro_batch(9);
  ExpectSame(Train(job), Train(Over(job, kOptimGradsParams, 3, 3)), kRoundOff);
}

// Settings that do not change the order of sums do not change a bit.

TEST(BitIdentical, Strategies) {
  for (const int world : {2, 4}) {
    const LocalJobResult optim = Train(Over(TestJob(), kOptim, world));
    ExpectSame(optim, Train(Over(TestJob(), kOptimGrads, world)), 0);
    ExpectSame(optim, Train(Over(TestJob(), kOptimGradsParams, world)), 0);
  }
  ExpectSame(Train(Over(TestJob(), kOptimGrads, 2, 3)), Train(Over(TestJob(), kOptimGradsParams, 2, 3)), 0);
}

TEST(BitIdentical, ReplicasShardOptimizer) {
  const LocalJobResult hsdp = Train(Over(TestJob(), kHsdp, 4, 3));
  const LocalJobResult hfsdp = Train(Over(TestJob(), kHfsdp, 4, 3));
  ExpectSame(hsdp, hfsdp, kRoundOff / 10);  // The reported norm sums other pieces.
  EXPECT_EQ(hsdp.weights, hfsdp.weights);
}

TEST(BitIdentical, NoReshard) {
  const v1::JobSpec job = Over(TestJob(), kOptimGradsParams, 2, 3);
  v1::JobSpec keeps = job;
  keeps.mutable_fsdp()->set_keep_gathered(true);
  ExpectSame(Train(job), Train(keeps), 0);
}

TEST(BitIdentical, Recompute) {
  for (const TestMesh& mesh : {kOptimGrads, kOptimGradsParams}) {
    const v1::JobSpec job = Over(TestJob(), mesh, 2, 2);
    v1::JobSpec full = job;
    full.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
    v1::JobSpec first_layer = full;
    first_layer.mutable_fsdp()->set_recompute_layers(1);
    const LocalJobResult baseline = Train(job);
    ExpectSame(baseline, Train(full), 0);
    ExpectSame(baseline, Train(first_layer), kRoundOff);
  }
}

TEST(BitIdentical, SelectiveRecompute) {
  const v1::JobSpec job = Over(TestJob(), kOptimGradsParams, 2, 2);
  v1::JobSpec selective = job;
  selective.mutable_fsdp()->set_recompute(v1::RECOMPUTE_SELECTIVE);
  ExpectSame(Train(job), Train(selective), kRoundOff);
}

TEST(BitIdentical, Prefetch) {
  v1::JobSpec job = Over(TestJob(), kOptimGradsParams, 2, 3);
  const LocalJobResult usual = Train(job);
  for (const int64_t bytes : {int64_t{0}, int64_t{1} << 30}) {
    job.mutable_fsdp()->set_prefetch_bytes(bytes);
    ExpectSame(usual, Train(job), 0);
  }
}

TEST(BitIdentical, OverlappingSteps) {
  LocalJobOptions ahead;
  ahead.run_ahead_on_cpu = true;
  for (const TestMesh& mesh : {kNoShard, kOptim, kOptimGrads, kOptimGradsParams, kHsdp, kHfsdp}) {
    v1::JobSpec job = Over(TestJob(), mesh, 4, 3);
    job.mutable_train()->set_steps(12);
    job.mutable_optimizer()->set_clip_norm(0.5);
    const LocalJobResult one_by_one = Train(job);
    const LocalJobResult overlapped = Train(job, ahead);
    ExpectSame(one_by_one, overlapped, 0);
    for (size_t s = 0; s < overlapped.reports[0].size(); ++s) {
      EXPECT_EQ(overlapped.reports[0][s].step(), static_cast<int64_t>(s) + 1);  // Reports keep their order.
    }
  }
}

TEST(BitIdentical, SameSeed) {
  const v1::JobSpec job = Over(TestJob(), kOptimGradsParams, 2);
  ExpectSame(Train(job), Train(job), 0);
}

// Models whose head shares the embedding's matrix.
class Tied : public ::testing::TestWithParam<bool> {};

TEST_P(Tied, SumsGradientsOfBothUses) {
  v1::JobSpec job = TestJob();
  if (GetParam()) {
    v1::Gpt2* model = job.mutable_model()->mutable_gpt2();
    model->set_vocab_size(37);
    model->set_hidden_size(20);
    model->set_layers(2);
    model->set_heads(2);
    model->set_positions(11);
  } else {
    job.mutable_model()->mutable_llama()->set_tied_embeddings(true);
  }
  const LocalJobResult one_rank = Train(job);
  EXPECT_LT(one_rank.reports[0].back().loss(), one_rank.reports[0].front().loss());
  for (const TestMesh& mesh : {kNoShard, kOptim, kOptimGrads, kOptimGradsParams, kHsdp, kHfsdp}) {
    for (const int micro_batches : {1, 3}) {
      SCOPED_TRACE(mesh.name + " " + std::to_string(micro_batches));
      ExpectSame(one_rank, Train(Over(job, mesh, 4, micro_batches)), kRoundOff);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Tied, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "gpt2" : "llama"; });

TEST(Frozen, DoNotMove) {
  v1::JobSpec job = TestJob();
  for (const char* pattern : {"embedding.*", "layer.0.attention.*", "head.norm"}) {
    job.mutable_train()->add_frozen(pattern);
  }
  const auto plan = AcceptedPlan(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  LocalJobOptions options;
  for (int64_t i = 0; i < plan->layout.elements(); ++i) {
    options.weights.push_back(0.02f * static_cast<float>(i % 17 - 8));
  }
  const LocalJobResult one_rank = Train(job, options);
  ASSERT_EQ(one_rank.weights.size(), options.weights.size());
  size_t at = 0;
  for (const UnitFacts& unit : plan->model.units) {
    for (const ParamFacts& param : unit.params) {
      const bool moved =
          !std::equal(one_rank.weights.begin() + at, one_rank.weights.begin() + at + param.elements(),
                      options.weights.begin() + at);
      EXPECT_EQ(moved, param.trainable) << unit.name << "." << param.name;
      at += param.elements();
    }
  }
  for (const TestMesh& mesh : {kNoShard, kOptim, kOptimGrads, kOptimGradsParams, kHsdp, kHfsdp}) {
    SCOPED_TRACE(mesh.name);
    ExpectSame(one_rank, Train(Over(job, mesh, 4, 3), options), kRoundOff);
  }
}

}  // namespace
}  // namespace fsdpd
