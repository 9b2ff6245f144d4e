// LoRA: adapters train like those of one rank in every strategy and mesh, frozen weights stay, and
// checkpoints hold only the adapters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/engine/testing/test_job.h"
#include "fsdp/kernels/nf4/nf4_format.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kRoundOff = 1e-5;

v1::JobSpec LoraJob() {
  v1::JobSpec job = TestJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(44);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_head_size(6);
  job.mutable_data()->mutable_synthetic()->set_vocab(44);
  job.mutable_data()->set_sequence_length(24);
  job.mutable_optimizer()->set_clip_norm(0.5);
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e-2);
  job.mutable_train()->mutable_lora()->set_rank(3);
  return job;
}

struct Case {
  TestMesh mesh;
  int world = 2;
  int micro_batches = 1;
  int tensor = 1;
  int context = 1;
  int pipeline = 1;
};

v1::JobSpec Over(const v1::JobSpec& job, const Case& c) {
  v1::JobSpec over = Over(job, c.mesh, c.world, c.micro_batches);
  over.mutable_parallel()->set_tensor(c.tensor);
  over.mutable_parallel()->set_context(c.context);
  over.mutable_parallel()->set_pipeline(c.pipeline);
  over.mutable_train()->set_micro_batch(job.train().global_batch() * c.tensor * c.context * c.pipeline /
                                        c.world / c.micro_batches);
  // Each stage needs a layer: embedding and head have no adapters.
  for (int stage = 0; c.pipeline > 1 && stage < c.pipeline; ++stage)
    over.mutable_parallel()->add_stage_units(2);
  return over;
}

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};

std::vector<Case> Cases() {
  const TestMesh optim{"optim", v1::STRATEGY_OPTIM};
  const TestMesh grads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
  const TestMesh hsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
  const TestMesh hfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};
  std::vector<Case> cases;
  for (const TestMesh& mesh : {kNoShard, optim, grads, kParams}) {
    cases.push_back({mesh, 2, 2});
    cases.push_back({mesh, 3, 1});
    cases.push_back({mesh, 2, 1, /*tensor=*/2});
    cases.push_back({mesh, 4, 1, /*tensor=*/4});  // Two ranks share a key head.
    cases.push_back({mesh, 2, 2, 1, /*context=*/2});
    cases.push_back({mesh, 4, 2, 1, 1, /*pipeline=*/2});
  }
  for (const TestMesh& mesh : {hsdp, hfsdp}) cases.push_back({mesh, 4, 1});
  cases.push_back({hfsdp, 8, 1, 2, 2});
  return cases;
}

class Lora : public ::testing::TestWithParam<Case> {};

TEST_P(Lora, MatchesOneRank) {
  static const LocalJobResult* const one_rank = new LocalJobResult(Train(LoraJob()));
  ExpectSame(*one_rank, Train(Over(LoraJob(), GetParam())), kRoundOff);
}

INSTANTIATE_TEST_SUITE_P(Meshes, Lora, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           const Case& c = info.param;
                           return c.mesh.name + "_world" + std::to_string(c.world) + "_mb" +
                                  std::to_string(c.micro_batches) + "_tensor" + std::to_string(c.tensor) +
                                  "_context" + std::to_string(c.context) + "_pipeline" +
                                  std::to_string(c.pipeline);
                         });

const Case kShared{kParams, 4, 2, 2};

v1::JobSpec Nf4Job() {
  v1::JobSpec job = LoraJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_hidden_size(64);
  llama->set_intermediate_size(128);
  llama->set_head_size(32);
  job.mutable_train()->mutable_lora()->set_base_type(v1::BASE_TYPE_NF4);
  job.mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM_GRADS_PARAMS);
  return job;
}

TEST(Nf4Base, MatchesOneRank) {
  const LocalJobResult one_rank = Train(Nf4Job());
  const TestMesh hsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
  for (const Case& c :
       {Case{kParams, 2, 2}, Case{kParams, 3}, Case{hsdp, 4}, Case{kParams, 2, 1, /*tensor=*/2},
        Case{kParams, 4, 1, 2, /*context=*/2}, Case{kParams, 4, 2, 1, 1, /*pipeline=*/2}}) {
    SCOPED_TRACE(::testing::Message() << c.world << " ranks, tensor " << c.tensor);
    const LocalJobResult got = Train(Over(Nf4Job(), c));
    ExpectSame(one_rank, got, kRoundOff);
  }
}

TEST(Nf4Base, TakesFourAndAHalfBits) {
  int64_t narrow = 0, wide = 0;
  for (const Bucket& bucket : MakePlan(Nf4Job(), 0).layout.buckets) {
    if (!bucket.in_nf4) continue;
    narrow += bucket.main_bytes();
    wide += bucket.elements;
  }
  EXPECT_EQ(wide, 2 * (64 * 4 * 32 * 2 + 64 * 2 * 32 * 2 + 3 * 64 * 128));
  EXPECT_EQ(narrow, wide * 9 / 16);
}

TEST(Nf4Base, RecomputesAndOffloads) {
  v1::JobSpec job = Over(Nf4Job(), Case{kParams, 2, 2});
  const LocalJobResult baseline = Train(job);
  job.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(true);
  ExpectSame(baseline, Train(job), 0);
}

TEST(LoraJob, StartsLikeTheModelWithoutAdapters) {
  v1::JobSpec plain = LoraJob();
  plain.mutable_train()->clear_lora();
  const LocalJobResult with = Train(LoraJob()), without = Train(plain);
  EXPECT_EQ(with.reports[0].front().loss(), without.reports[0].front().loss());
  EXPECT_LT(with.reports[0].back().loss(), with.reports[0].front().loss());
}

// By name: the flat values of each parameter.
std::map<std::string, std::vector<float>> ParamsOf(const v1::JobSpec& job, const LocalJobResult& result) {
  std::map<std::string, std::vector<float>> params;
  auto begin = result.weights.begin();
  for (const UnitFacts& unit : MakePlan(job, 0).model.units) {
    for (const ParamFacts& param : unit.params) {
      params[FullName(unit, param)].assign(begin, begin + param.full_elements());
      begin += param.full_elements();
    }
  }
  return params;
}

// Matrices that can have an adapter, and no other weights.
TEST(Nf4Base, QuantizesTheFrozenMatrices) {
  v1::JobSpec job = Nf4Job();
  job.mutable_train()->set_steps(1);
  v1::JobSpec plain = job;
  plain.mutable_train()->mutable_lora()->clear_base_type();
  const auto got = ParamsOf(job, Train(job)), before = ParamsOf(plain, Train(plain));
  int quantized = 0;
  for (const UnitFacts& unit : MakePlan(job, 0).model.units) {
    for (const ParamFacts& param : unit.params) {
      if (param.trainable) continue;
      std::vector<float> want = before.at(FullName(unit, param));
      uint8_t block[kNf4BlockBytes];
      for (size_t begin = 0; param.nf4 && begin < want.size(); begin += kNf4Block) {
        kernels::Nf4Quantize(want.data() + begin, block);
        for (int i = 0; i < kNf4Block; ++i) want[begin + i] = kernels::Nf4Number(block, i);
      }
      EXPECT_EQ(got.at(FullName(unit, param)), want) << FullName(unit, param);
      quantized += param.nf4 ? 1 : 0;
    }
  }
  EXPECT_EQ(quantized, 2 * 7);
}

TEST(LoraJob, ChangesOnlyAdaptersOfTargets) {
  v1::JobSpec job = LoraJob();
  job.mutable_train()->mutable_lora()->add_targets("*.attention.*");
  job.mutable_train()->mutable_lora()->add_targets("layer.1.ffn.w2");
  v1::JobSpec first = job;
  first.mutable_train()->set_steps(1);
  first.mutable_optimizer()->mutable_adamw()->set_lr(1e-30);
  const auto before = ParamsOf(job, Train(first)), after = ParamsOf(job, Train(job));
  ASSERT_EQ(before.size(), after.size());
  int adapters = 0;
  for (const auto& [name, values] : after) {
    const bool is_adapter = name.find(".lora_") != std::string::npos;
    EXPECT_EQ(values != before.at(name), is_adapter) << name;
    adapters += is_adapter ? 1 : 0;
  }
  EXPECT_EQ(adapters, 2 * (2 * 4 + 1));
}

TEST(LoraJob, RecomputeIsBitIdentical) {
  const LocalJobResult baseline = Train(Over(LoraJob(), kShared));
  for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
    v1::JobSpec job = Over(LoraJob(), kShared);
    job.mutable_fsdp()->set_recompute(recompute);
    ExpectSame(baseline, Train(job), 0);
  }
}

TEST(LoraJob, SupportsBiasesNormsAndTiedEmbeddings) {
  v1::JobSpec job = LoraJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_qk_norm(true);
  llama->set_attention_bias(true);
  llama->set_tied_embeddings(true);
  const LocalJobResult one_rank = Train(job);
  ExpectSame(one_rank, Train(Over(job, kShared)), kRoundOff);
  ExpectSame(one_rank, Train(Over(job, {kParams, 2, 2, 1, 1, /*pipeline=*/2})), kRoundOff);
}

v1::JobSpec ExpertsJob() {
  v1::JobSpec job = LoraJob();
  v1::Llama::Experts* experts = job.mutable_model()->mutable_llama()->mutable_experts();
  experts->set_count(4);
  experts->set_per_token(2);
  experts->set_intermediate_size(10);
  experts->set_dense_layers(1);
  experts->set_shared_intermediate_size(12);
  experts->set_selection_bias(true);
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  job.mutable_train()->set_steps(3);
  return job;
}

TEST(LoraJob, SupportsExperts) {
  const LocalJobResult one_rank = Train(ExpertsJob());
  v1::JobSpec spread = Over(ExpertsJob(), {kParams, 4});
  spread.mutable_parallel()->set_expert(2);
  ExpectSame(one_rank, Train(spread), kRoundOff);
  ExpectSame(one_rank, Train(Over(ExpertsJob(), {kParams, 2, 1, /*tensor=*/2})), kRoundOff);
  v1::JobSpec half = ExpertsJob();
  half.mutable_precision()->set_compute(v1::DTYPE_BF16);
  for (const Bucket& bucket : MakePlan(half, 0).layout.buckets) {
    const bool is_bias = bucket.params[0].name == "ffn.router_bias";
    if (bucket.of_base) EXPECT_EQ(bucket.types.main, is_bias ? DType::kFp32 : DType::kBf16);
  }
  EXPECT_EQ(Train(half).reports[0].size(), 3);
}

TEST(LoraJob, SupportsLatentAttention) {
  v1::JobSpec job = LoraJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->clear_head_size();
  llama->set_kv_heads(4);
  v1::Llama::LatentAttention* latent = llama->mutable_latent_attention();
  latent->set_rank(10);
  latent->set_query_rank(12);
  latent->set_plain_head_size(6);
  latent->set_rotary_head_size(4);
  latent->set_value_head_size(5);
  const LocalJobResult one_rank = Train(job);
  ExpectSame(one_rank, Train(Over(job, {kParams, 2})), kRoundOff);
  ExpectSame(one_rank, Train(Over(job, {kParams, 2, 1, /*tensor=*/2})), kRoundOff);
}

TEST(LoraJob, TrainsInFp16WithDocuments) {
  v1::JobSpec job = Over(LoraJob(), {kParams, 2});
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  job.mutable_data()->set_document_end_token(3);
  job.mutable_train()->set_steps(4);
  EXPECT_EQ(Train(job).reports[0].size(), 4);
}

TEST(LoraJob, OffloadsOptimizerState) {
  v1::JobSpec job = Over(LoraJob(), {kParams, 2});
  const LocalJobResult baseline = Train(job);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(true);
  ExpectSame(baseline, Train(job), 0);
}

TEST(LoraJob, StoresFrozenWeightsOnlyInComputeType) {
  v1::JobSpec job = LoraJob();
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  const Plan plan = MakePlan(job, 0);
  int64_t base = 0, adapters = 0;
  for (const Bucket& bucket : plan.layout.buckets) (bucket.of_base ? base : adapters) += bucket.main_elements;
  EXPECT_GT(base, adapters);
  EXPECT_EQ(plan.memory.Of("main_params"), 2 * base + 4 * adapters);
  EXPECT_EQ(plan.memory.Of("optimizer"), 2 * 4 * adapters);
  EXPECT_EQ(plan.memory.Of("gradients"), 4 * adapters);
  EXPECT_LT(Train(job).reports[0].back().loss(), Train(job).reports[0].front().loss());
}

class LoraCheckpoint : public ::testing::Test {
 protected:
  v1::JobSpec Saves(const std::string& name, int steps) const {
    v1::JobSpec job = Over(LoraJob(), {kParams, 2});
    job.mutable_train()->set_steps(steps);
    job.mutable_checkpoint()->set_dir(dir_.File(name));
    return job;
  }
  std::string Path(const std::string& name, int step) const { return CheckpointPath(dir_.File(name), step); }

  TempDir dir_;
};

TEST_F(LoraCheckpoint, HoldsOnlyAdaptersAndResumes) {
  const LocalJobResult whole = Train(Saves("whole", 6));
  Train(Saves("part", 3));
  const auto reader = DcpReader::Open(Path("part", 3));
  ASSERT_TRUE(reader.ok());
  for (const DcpTensor& tensor : (*reader)->index().tensors) EXPECT_THAT(tensor.name, HasSubstr(".lora_"));
  for (const Case& c : {Case{kParams, 2}, Case{kNoShard, 1}, Case{kParams, 4, 1, 2}}) {
    v1::JobSpec job = Over(LoraJob(), c);
    job.mutable_checkpoint()->set_load(Path("part", 3));
    ExpectSameRest(whole, Train(job), c.world == 2 ? 0 : kRoundOff);
  }
}

TEST_F(LoraCheckpoint, LoadsBaseModel) {
  v1::JobSpec full = Saves("full", 3);
  full.mutable_train()->clear_lora();
  Train(full);
  v1::JobSpec job = Saves("adapters", 6);
  job.mutable_train()->mutable_lora()->set_base_model(dir_.File("full"));
  const LocalJobResult whole = Train(job);
  v1::JobSpec more = full;  // The same weights without adapters have the same loss.
  more.mutable_checkpoint()->set_dir(dir_.File("more"));
  more.mutable_checkpoint()->set_load(dir_.File("full"));
  more.mutable_checkpoint()->set_load_optimizer(false);
  EXPECT_EQ(whole.reports[0].front().loss(), Train(more).reports[0].front().loss());
  v1::JobSpec rest = job;
  rest.mutable_checkpoint()->set_dir(dir_.File("rest"));
  rest.mutable_checkpoint()->set_load(Path("adapters", 6));
  rest.mutable_train()->set_steps(7);
  EXPECT_EQ(Train(rest).reports[0].size(), 1);
}

absl::Status ErrorOf(const v1::JobSpec& job) { return RunLocalJob(MakePlan(job, 0), {}).status(); }

// Regression test: they stayed until an attempt could read the base model.
TEST_F(LoraCheckpoint, RemovesFilesOfAnInterruptedSaveWithoutABaseModel) {
  v1::JobSpec job = Saves("adapters", 3);
  job.mutable_train()->mutable_lora()->set_base_model(dir_.File("nothing"));
  std::filesystem::create_directories(Path("adapters", 3));
  const std::string part = Path("adapters", 3) + "/__0_0.distcp.token.part";
  std::ofstream(part) << "x";
  EXPECT_THAT(ErrorOf(job).message(), HasSubstr("train.lora.base_model: no checkpoint at"));
  EXPECT_FALSE(std::filesystem::exists(part));
}

TEST_F(LoraCheckpoint, RejectsOtherBaseAndFullCheckpoints) {
  Train(Saves("adapters", 3));
  v1::JobSpec other = Saves("other", 6);
  other.mutable_checkpoint()->set_load(Path("adapters", 3));
  other.mutable_train()->set_seed(7);
  EXPECT_THAT(ErrorOf(other).message(),
              HasSubstr("train.lora.base_model: the adapters were trained with other"));
  v1::JobSpec full = Saves("full", 3);
  full.mutable_train()->clear_lora();
  Train(full);
  v1::JobSpec mistaken = Saves("mistaken", 6);
  mistaken.mutable_checkpoint()->set_load(Path("full", 3));
  EXPECT_THAT(ErrorOf(mistaken).message(), HasSubstr("has no adapters; set train.lora.base_model"));
  full.mutable_checkpoint()->set_load(Path("adapters", 3));
  full.mutable_checkpoint()->set_dir(dir_.File("again"));
  EXPECT_THAT(ErrorOf(full).message(), HasSubstr("has only LoRA adapters; load them with train.lora"));
  v1::JobSpec swapped = Saves("swapped", 3);
  swapped.mutable_train()->mutable_lora()->set_base_model(Path("adapters", 3));
  EXPECT_THAT(ErrorOf(swapped).message(),
              AllOf(HasSubstr("train.lora.base_model: "), HasSubstr("has only LoRA")));
  v1::JobSpec missing = Saves("missing", 3);
  missing.mutable_train()->mutable_lora()->set_base_model(dir_.File("nothing"));
  EXPECT_THAT(ErrorOf(missing).message(), HasSubstr("train.lora.base_model: no checkpoint at"));
}

}  // namespace
}  // namespace fsdpd
