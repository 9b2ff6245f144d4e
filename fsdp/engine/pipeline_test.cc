// Pipeline parallelism: a job with any number and size of stages, with every strategy within them, matches
// the job on one rank up to rounding, and resumes from a checkpoint of any other mesh.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

constexpr double kRoundOff = 1e-5;

struct Case {
  TestMesh mesh;
  int world = 2;
  int pipeline = 2;
  int micro_batches = 1;
  int tensor = 1;
  int context = 1;
  std::vector<int64_t> stage_units = {};
  int chunks = 1;
  bool zero_bubble = false;
};

// Embedding, four layers, head. Clips the norm over all stages.
v1::JobSpec StagedJob() {
  v1::JobSpec job = TestJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(44);
  llama->set_hidden_size(16);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_layers(4);
  job.mutable_data()->set_sequence_length(16);
  job.mutable_optimizer()->set_clip_norm(0.5);
  job.mutable_train()->set_steps(10);
  return job;
}

v1::JobSpec Staged(const v1::JobSpec& job, const Case& c) {
  v1::JobSpec staged = Over(job, c.mesh, c.world, c.micro_batches);
  staged.mutable_parallel()->set_pipeline(c.pipeline);
  if (c.chunks > 1) staged.mutable_parallel()->set_pipeline_chunks(c.chunks);
  if (c.zero_bubble) staged.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
  staged.mutable_parallel()->set_tensor(c.tensor);
  staged.mutable_parallel()->set_context(c.context);
  for (const int64_t units : c.stage_units) staged.mutable_parallel()->add_stage_units(units);
  staged.mutable_train()->set_micro_batch(job.train().global_batch() * c.pipeline * c.tensor * c.context /
                                          c.world / c.micro_batches);
  return staged;
}

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kOptim{"optim", v1::STRATEGY_OPTIM};
const TestMesh kGrads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const TestMesh& mesh : {kNoShard, kOptim, kGrads, kParams}) {
    cases.push_back({mesh, 2, 2, 1});
    cases.push_back({mesh, 4, 2, 3});
    cases.push_back({mesh, 4, 4, 2});  // Fewer micro-batches than stages.
    cases.push_back({mesh, 8, 4, 6});
  }
  for (const TestMesh& mesh : {kHsdp, kHfsdp}) {
    cases.push_back({mesh, 4, 2, 1});
    cases.push_back({mesh, 8, 2, 3});
  }
  for (const TestMesh& mesh : {kNoShard, kParams}) {
    cases.push_back({mesh, 4, 2, 3, 2, 1});
    cases.push_back({mesh, 4, 2, 3, 1, 2});
    cases.push_back({mesh, 8, 2, 2, 2, 2});
  }
  cases.push_back({kParams, 4, 2, 4, 1, 1, {1, 5}});
  cases.push_back({kParams, 3, 3, 4, 1, 1, {4, 1, 1}});
  cases.push_back({kGrads, 6, 6, 12, 1, 1, {1, 1, 1, 1, 1, 1}});
  // Interleaved.
  for (const TestMesh& mesh : {kNoShard, kOptim, kGrads, kParams}) {
    cases.push_back({mesh, 2, 2, 2, 1, 1, {}, 2});
    cases.push_back({mesh, 4, 2, 6, 1, 1, {}, 3});
  }
  for (const TestMesh& mesh : {kHsdp, kHfsdp}) cases.push_back({mesh, 4, 2, 2, 1, 1, {}, 2});
  cases.push_back({kOptim, 3, 3, 6, 1, 1, {1, 1, 1, 1, 1, 1}, 2});
  cases.push_back({kParams, 2, 2, 4, 1, 1, {2, 1, 1, 2}, 2});
  cases.push_back({kParams, 4, 2, 2, 2, 1, {}, 2});
  cases.push_back({kParams, 4, 2, 2, 1, 2, {}, 2});
  for (const TestMesh& mesh : {kNoShard, kOptim}) {
    cases.push_back({mesh, 4, 2, 3, 1, 1, {}, 1, true});
    cases.push_back({mesh, 4, 4, 2, 1, 1, {}, 1, true});
    cases.push_back({mesh, 4, 2, 3, 2, 1, {}, 1, true});
  }
  cases.push_back({kOptim, 6, 6, 12, 1, 1, {1, 1, 1, 1, 1, 1}, 1, true});
  return cases;
}

class Pipeline : public ::testing::TestWithParam<Case> {};

TEST_P(Pipeline, MatchesOneRank) {
  static const LocalJobResult* const alone = new LocalJobResult(Train(StagedJob()));
  const LocalJobResult staged = Train(Staged(StagedJob(), GetParam()));
  ExpectSame(*alone, staged, kRoundOff);
  // Every rank has the statistics of all stages that rank 0 reports.
  for (const auto& reports : staged.reports) {
    EXPECT_EQ(reports.back().loss(), staged.reports[0].back().loss());
    EXPECT_EQ(reports.back().grad_norm(), staged.reports[0].back().grad_norm());
  }
}

std::string NameOfCase(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = c.mesh.name + "_world" + std::to_string(c.world) + "_stages" +
                     std::to_string(c.pipeline) + "_mb" + std::to_string(c.micro_batches) + "_tensor" +
                     std::to_string(c.tensor) + "_context" + std::to_string(c.context);
  if (c.chunks > 1) name += "_chunks" + std::to_string(c.chunks);
  if (c.zero_bubble) name += "_zero_bubble";
  for (const int64_t units : c.stage_units) name += "_" + std::to_string(units);
  return name;
}

INSTANTIATE_TEST_SUITE_P(Meshes, Pipeline, ::testing::ValuesIn(Cases()), NameOfCase);

const Case kTwo{kParams, 4, 2, 3}, kFour{kOptim, 4, 4, 6}, kTurns{kParams, 4, 2, 6, 1, 1, {}, 3},
    kDeferred{kOptim, 4, 4, 6, 1, 1, {}, 1, true};

// Without a sharded norm, and with equal micro-batches, sums have the same order.
TEST(Pipeline, IsBitIdenticalWithTheSameOrder) {
  v1::JobSpec job = StagedJob();
  job.mutable_optimizer()->clear_clip_norm();
  job.mutable_train()->set_micro_batch(3);
  const LocalJobResult alone = Train(job);
  for (const int stages : {2, 3, 4}) {
    v1::JobSpec staged = job;
    staged.mutable_resources()->set_ranks_per_node(stages);
    staged.mutable_parallel()->set_pipeline(stages);
    EXPECT_EQ(Train(staged).weights, alone.weights) << stages << " stages";
    staged.mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM);
    staged.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
    EXPECT_EQ(Train(staged).weights, alone.weights) << stages << " stages that put off";
  }
}

TEST(Pipeline, InitialValuesMatchOneRank) {
  v1::JobSpec job = StagedJob();
  job.mutable_train()->set_steps(1);
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e-30);
  job.mutable_optimizer()->mutable_adamw()->set_weight_decay(0);
  const LocalJobResult alone = Train(job);
  LocalJobOptions given;
  for (size_t i = 0; i < alone.weights.size(); ++i)
    given.weights.push_back(static_cast<float>(i % 7 + 1) / 64);
  for (const Case& c : {kTwo, kFour, kTurns}) {
    EXPECT_EQ(Train(Staged(job, c)).weights, alone.weights);
    EXPECT_EQ(Train(Staged(job, c), given).weights, given.weights);
  }
}

TEST(Pipeline, RecomputeIsBitIdentical) {
  for (const Case& c : {kTwo, kFour, kTurns, kDeferred}) {
    const LocalJobResult kept = Train(Staged(StagedJob(), c));
    for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
      for (const int layers : {2, 4}) {
        v1::JobSpec job = Staged(StagedJob(), c);
        job.mutable_fsdp()->set_recompute(recompute);
        job.mutable_fsdp()->set_recompute_layers(layers);
        ExpectSame(kept, Train(job), 0);
      }
    }
  }
}

TEST(Pipeline, RunAheadIsBitIdentical) {
  for (const Case& c : {kTwo, kFour, kTurns, kDeferred, Case{kNoShard, 2, 2, 1}}) {
    const v1::JobSpec job = Staged(StagedJob(), c);
    LocalJobOptions ahead;
    ahead.run_ahead_on_cpu = true;
    EXPECT_EQ(Train(job, ahead).weights, Train(job).weights);
  }
}

TEST(Pipeline, FrozenParametersDoNotMove) {
  v1::JobSpec job = StagedJob();
  job.mutable_train()->add_frozen("embedding.*");
  job.mutable_train()->add_frozen("*.attention.*");
  const LocalJobResult alone = Train(job);
  ExpectSame(alone, Train(Staged(job, {kParams, 4, 2, 3, 1, 1, {3, 3}})), kRoundOff);
  ExpectSame(alone, Train(Staged(job, {kOptim, 4, 4, 3, 1, 1, {2, 1, 2, 1}})), kRoundOff);
}

// The first stage has the embedding and the last the head: one matrix, whose gradient sums both uses and
// counts once in the norm for clipping.
TEST(Pipeline, TiedEmbeddingsMatchOneRank) {
  v1::JobSpec job = StagedJob();
  job.mutable_model()->mutable_llama()->set_tied_embeddings(true);
  const LocalJobResult alone = Train(job);
  for (const TestMesh& mesh : {kNoShard, kOptim, kGrads, kParams}) {
    for (const Case& c : {Case{mesh, 4, 2, 3}, Case{mesh, 3, 3, 4}, Case{mesh, 4, 2, 2, 1, 1, {}, 2}})
      ExpectSame(alone, Train(Staged(job, c)), kRoundOff);
  }
  ExpectSame(alone, Train(Staged(job, kDeferred)), kRoundOff);
  for (const Case& c : {Case{kHsdp, 8, 2, 3}, Case{kHfsdp, 8, 2, 3}, Case{kParams, 4, 2, 3, 2, 1}})
    ExpectSame(alone, Train(Staged(job, c)), kRoundOff);
}

TEST(Pipeline, ResumesTiedEmbeddings) {
  v1::JobSpec job = StagedJob();
  job.mutable_model()->mutable_llama()->set_tied_embeddings(true);
  const LocalJobResult whole = Train(job);
  const std::vector<Case> stages = {{kNoShard, 1, 1, 1}, kTwo, {kHfsdp, 8, 2, 3}};
  for (const Case& before : stages) {
    const TempDir dir;
    v1::JobSpec first = Staged(job, before);
    first.mutable_checkpoint()->set_dir(dir.path());
    first.mutable_checkpoint()->set_every_steps(5);
    ExpectSame(whole, Train(first), kRoundOff);
    for (const Case& after : stages) {
      v1::JobSpec second = Staged(job, after);
      second.mutable_checkpoint()->set_load(dir.path() + "/iter_0000005");
      const LocalJobResult rest = Train(second);
      for (size_t i = 0; i < whole.weights.size(); ++i)
        ASSERT_NEAR(rest.weights[i], whole.weights[i], 1e-3) << i;
    }
  }
}

TEST(Pipeline, FrozenTiedEmbeddings) {
  v1::JobSpec job = StagedJob();
  job.mutable_model()->mutable_llama()->set_tied_embeddings(true);
  job.mutable_train()->add_frozen("embedding.*");
  const LocalJobResult alone = Train(job);
  LocalJobOptions given;
  for (size_t i = 0; i < alone.weights.size(); ++i)
    given.weights.push_back(static_cast<float>(i % 7 + 1) / 64);
  const LocalJobResult from = Train(job, given);
  const Case even{kParams, 4, 2, 3, 1, 1, {3, 3}};
  ExpectSame(alone, Train(Staged(job, even)), kRoundOff);
  ExpectSame(from, Train(Staged(job, even), given), kRoundOff);
}

TEST(Pipeline, HalfPrecisionIsClose) {
  v1::JobSpec job = StagedJob();
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  const LocalJobResult alone = Train(job);
  for (const Case& c : {kTwo, kFour, kTurns, kDeferred}) ExpectSame(alone, Train(Staged(job, c)), 0.02);
}

TEST(Pipeline, LossScaleSkipsOnAllStages) {
  v1::JobSpec job = StagedJob();
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  job.mutable_precision()->mutable_loss_scale()->set_initial(1 << 30);
  const LocalJobResult alone = Train(job);
  EXPECT_TRUE(alone.reports[0][0].skipped());
  for (const Case& c : {kTwo, kFour, kTurns, kDeferred}) {
    const LocalJobResult staged = Train(Staged(job, c));
    for (const auto& reports : staged.reports) {
      for (size_t s = 0; s < reports.size(); ++s) {
        EXPECT_EQ(reports[s].skipped(), alone.reports[0][s].skipped()) << "step " << s + 1;
        EXPECT_EQ(reports[s].loss_scale(), alone.reports[0][s].loss_scale());
      }
    }
  }
}

TEST(Pipeline, EvaluationMatchesOneRank) {
  const TempDir dir;
  v1::JobSpec job = StagedJob();
  {
    std::ofstream file(dir.File("valid.bin"), std::ios::binary);
    for (int i = 0; i < 16 * 12 * 3 + 1; ++i) file << static_cast<char>(i * i % 37) << '\0';
  }
  v1::TokenFile* tokens = job.mutable_data()->add_validation();
  tokens->set_path(dir.File("valid.bin"));
  tokens->set_type(v1::TOKEN_TYPE_U16);
  job.mutable_train()->mutable_evaluation()->set_every_steps(5);
  const LocalJobResult alone = Train(job);
  ASSERT_TRUE(alone.reports[0][4].has_evaluation());
  for (const Case& c : {kTwo, kFour, kTurns, Case{kHfsdp, 8, 2, 3}}) {
    const LocalJobResult staged = Train(Staged(job, c));
    ExpectSame(alone, staged, kRoundOff);
    EXPECT_EQ(ExpectSameEvaluations(alone, staged, kRoundOff), 2);
  }
}

// Four stages, then two, then none.
TEST(Pipeline, ResumesWithOtherStages) {
  const LocalJobResult whole = Train(StagedJob());
  const std::vector<Case> stages = {{kNoShard, 1, 1, 1}, kTwo, kTurns, {kHfsdp, 8, 2, 3}};
  for (const Case& before : stages) {
    const TempDir dir;
    v1::JobSpec first = Staged(StagedJob(), before);
    first.mutable_checkpoint()->set_dir(dir.path());
    first.mutable_checkpoint()->set_every_steps(5);
    ExpectSame(whole, Train(first), kRoundOff);
    for (const Case& after : stages) {
      v1::JobSpec second = Staged(StagedJob(), after);
      second.mutable_checkpoint()->set_load(dir.path() + "/iter_0000005");
      const LocalJobResult rest = Train(second);
      ASSERT_EQ(rest.reports[0].size(), 5u);
      ExpectSameRest(whole, rest, kRoundOff);
    }
  }
}

TEST(Pipeline, RoutingStatisticsMatchOneRank) {
  v1::JobSpec job = StagedJob();
  v1::Llama::Experts* experts = job.mutable_model()->mutable_llama()->mutable_experts();
  experts->set_count(4);
  experts->set_per_token(2);
  experts->set_intermediate_size(12);
  experts->set_dense_layers(1);
  experts->set_balance_loss(0.1);
  experts->set_z_loss(0.01);
  const LocalJobResult alone = Train(job);
  v1::JobSpec among = Staged(job, {kParams, 4, 2, 3});
  among.mutable_parallel()->set_expert(2);
  for (const v1::JobSpec& staged : {Staged(job, kTwo), Staged(job, kTurns), Staged(job, kDeferred), among}) {
    const LocalJobResult result = Train(staged);
    ExpectSame(alone, result, kRoundOff);
    for (size_t s = 0; s < alone.reports[0].size(); ++s) {
      const v1::StepReport::Routing &a = alone.reports[0][s].routing(), &b = result.reports[0][s].routing();
      EXPECT_NEAR(a.entropy(), b.entropy(), 1e-4);
      EXPECT_NEAR(a.balance_loss(), b.balance_loss(), 1e-4);
      EXPECT_NEAR(a.z_loss(), b.z_loss(), 1e-4);
    }
  }
}

// Attention in each stage uses document boundaries.
TEST(Pipeline, SupportsDocuments) {
  v1::JobSpec job = StagedJob();
  job.mutable_data()->set_document_end_token(3);
  const LocalJobResult alone = Train(job);
  for (const Case& c : {kTwo, kFour, kTurns, kDeferred}) ExpectSame(alone, Train(Staged(job, c)), kRoundOff);
}

TEST(Pipeline, SupportsWholeDocuments) {
  const TempDir dir;
  std::ofstream file(dir.File("tokens"), std::ios::binary);
  for (int i = 0; i < 200; ++i) file << std::string(1 + i * 7 % 13, static_cast<char>(4 + i % 20)) << '\3';
  file.close();
  v1::JobSpec job = StagedJob();
  job.mutable_data()->clear_synthetic();
  job.mutable_data()->set_document_end_token(3);
  job.mutable_data()->set_packing(v1::PACKING_DOCUMENTS);
  v1::TokenFile* const tokens = job.mutable_data()->add_tokens();
  tokens->set_path(dir.File("tokens"));
  tokens->set_type(v1::TOKEN_TYPE_U8);
  job.mutable_model()->mutable_llama()->set_vocab_size(256);
  const LocalJobResult alone = Train(job);
  for (const Case& c : {kTwo, kFour, kTurns, kDeferred}) ExpectSame(alone, Train(Staged(job, c)), kRoundOff);
}

TEST(Pipeline, FailedRankEndsAllStages) {
  v1::JobSpec job = Staged(StagedJob(), kFour);
  LocalJobOptions options;
  options.on_step = [](const v1::StepReport& report) {
    return report.step() < 3 ? absl::OkStatus() : absl::InternalError("as a broken rank");
  };
  const auto plan = AcceptedPlan(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status status = RunLocalJob(*plan, options).status();
  EXPECT_NE(status.message().find("as a broken rank"), std::string::npos) << status;
}

}  // namespace
}  // namespace fsdpd
