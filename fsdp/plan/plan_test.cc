#include "fsdp/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/check_guard.h"

namespace fsdpd {
namespace {

// The job of the README's example, after the client made the path absolute.
v1::JobSpec TinyJob() {
  v1::JobSpec job;
  job.set_name("tiny-llama");
  job.mutable_model()->set_preset("tiny");
  v1::TokenFile* file = job.mutable_data()->add_tokens();
  file->set_path("/data/corpus.txt");
  file->set_type(v1::TOKEN_TYPE_U8);
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_train()->set_micro_batch(4);
  job.mutable_train()->set_global_batch(16);
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e-3);
  job.mutable_optimizer()->set_clip_norm(1.0);
  job.mutable_schedule()->mutable_cosine()->set_warmup_steps(20);
  job.mutable_schedule()->mutable_cosine()->set_min_lr_ratio(0.1);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  return job;
}

v1::JobSpec Llama8b(int64_t nodes) {
  v1::JobSpec job;
  job.set_name("llama3-8b-c4");
  job.mutable_model()->set_preset("llama3-8b");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(8192);
  job.mutable_train()->set_steps(1000);
  job.mutable_train()->set_global_batch(64 * nodes);
  job.mutable_resources()->set_nodes(nodes);
  job.mutable_resources()->set_ranks_per_node(8);
  return job;
}

std::string Text(const Violations& violations) {
  std::string text;
  for (const Violation& violation : violations)
    text += violation.field + ": " + violation.reason + " -> " + violation.fix + "\n";
  return text;
}

const Choice* Find(const Plan& plan, const std::string& field) {
  for (const Choice& choice : plan.choices) {
    if (choice.field == field) return &choice;
  }
  return nullptr;
}

std::map<std::string, int64_t> Components(const Plan& plan) {
  std::map<std::string, int64_t> bytes;
  for (const MemoryComponent& component : plan.memory.components) bytes[component.name] = component.bytes;
  return bytes;
}

TEST(Plan, CompilerBugRejectsJob) {
  const absl::Status failed =
      GuardChecks([] { FSDPD_CHECK_OK(absl::InternalError("rule 3: read before it came")); });
  const Violation bug = CompilerBug(TinyJob(), failed);
  EXPECT_EQ(bug.level, ViolationLevel::kError);
  EXPECT_EQ(bug.rule, "compiler_bug");
  EXPECT_NE(bug.reason.find("rule 3: read before it came"), std::string::npos) << bug.reason;
  EXPECT_NE(bug.reason.find("internal error of fsdpd"), std::string::npos) << bug.reason;
}

TEST(Plan, AcceptsExampleAndReportsChoices) {
  const Plan plan = MakePlan(TinyJob(), 0);
  ASSERT_TRUE(plan.accepted()) << Text(plan.violations);
  EXPECT_TRUE(plan.violations.empty()) << Text(plan.violations);
  EXPECT_EQ(plan.spec.mesh.world(), 4);
  EXPECT_EQ(plan.spec.micro_batches_per_step(), 1);
  EXPECT_EQ(plan.spec.precision.compute, DType::kFp32);
  EXPECT_EQ(plan.layout.units.size(), 6u);
  EXPECT_EQ(plan.program_hash, HashOf(Fingerprint(plan.spec, plan.layout, plan.program)));
  ASSERT_NE(Find(plan, "precision.compute"), nullptr);
  EXPECT_EQ(Find(plan, "precision.compute")->value, "fp32");
  ASSERT_NE(Find(plan, "fsdp.prefetch_bytes"), nullptr);
  for (const Choice& choice : plan.choices) {
    EXPECT_FALSE(choice.field.empty() || choice.value.empty() || choice.reason.empty()) << choice.field;
  }
  // Explicit values are not choices.
  EXPECT_EQ(Find(plan, "train.micro_batch"), nullptr);
  EXPECT_EQ(Find(plan, "optimizer.adamw.lr"), nullptr);
}

TEST(Plan, RejectsWithAllViolations) {
  v1::JobSpec job = TinyJob();
  job.set_name("Tiny Llama");
  job.mutable_train()->set_global_batch(15);
  job.mutable_model()->set_preset("tyni");
  const Plan plan = MakePlan(job, 0);
  EXPECT_FALSE(plan.accepted());
  EXPECT_EQ(plan.violations.size(), 3u) << Text(plan.violations);
  EXPECT_TRUE(plan.program.instructions.empty());
  EXPECT_EQ(ToProto(plan).violations_size(), 3);
  EXPECT_EQ(ToProto(plan).instructions_size(), 0);
}

v1::JobSpec Staged(int64_t stages) {
  v1::JobSpec job = TinyJob();
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  job.mutable_parallel()->set_pipeline(stages);
  return job;
}

TEST(Plan, ShowsStageWithHighestPeak) {
  const Plan plan = MakePlan(Staged(2), 0);
  ASSERT_TRUE(plan.accepted()) << Text(plan.violations);
  ASSERT_NE(plan.stages, nullptr);
  ASSERT_EQ(plan.stages->size(), 2u);
  const Plan whole = MakePlan(TinyJob(), 0);
  EXPECT_EQ(plan.full_layout().elements(), whole.layout.elements());
  int64_t elements = 0;
  for (const StagePlan& stage : *plan.stages) {
    EXPECT_LE(stage.memory.peak_bytes, plan.memory.peak_bytes);
    elements += stage.layout.elements();
  }
  EXPECT_EQ(elements, whole.layout.elements());
  const v1::Plan proto = ToProto(plan);
  EXPECT_EQ(proto.units_size(), static_cast<int>(whole.layout.units.size()));
  EXPECT_EQ(proto.parameters(), whole.layout.elements());
  ASSERT_EQ(proto.stages_size(), 2);
  EXPECT_EQ(proto.stages(0).first_unit(), "embedding");
  EXPECT_EQ(proto.stages(1).last_unit(), "head");
  EXPECT_NEAR(proto.stages(0).work_ratio() + proto.stages(1).work_ratio(), 2, 1e-9);
  EXPECT_DOUBLE_EQ(proto.flops_per_step(), ToProto(whole).flops_per_step());
  EXPECT_EQ(proto.mesh().pipeline(), 2);
  EXPECT_NE(Find(plan, "parallel.stage_units"), nullptr);
  const Plan again = MakePlan(plan.resolved, 0);
  EXPECT_EQ(again.program_hash, plan.program_hash);
  EXPECT_TRUE(again.choices.empty());
}

// Tied-embedding replicas count in the stage that saves them.
TEST(Plan, CountsTiedEmbeddingsOnceOverStages) {
  v1::JobSpec job = Staged(2);
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(256);
  llama->set_hidden_size(32);
  llama->set_intermediate_size(64);
  llama->set_layers(2);
  llama->set_heads(2);
  llama->set_tied_embeddings(true);
  const Plan plan = MakePlan(job, 0);
  ASSERT_TRUE(plan.accepted()) << Text(plan.violations);
  const v1::Plan proto = ToProto(plan);
  int64_t of_stages = 0, of_units = 0;
  for (const v1::Plan::Stage& stage : proto.stages()) of_stages += stage.parameters();
  for (const v1::Plan::Unit& unit : proto.units()) of_units += unit.parameters();
  EXPECT_EQ(of_stages, proto.parameters());
  EXPECT_EQ(of_units, proto.parameters());
}

// The last stage defers the most micro-batches.
TEST(Plan, CountsMemoryOfDeferredGradients) {
  v1::JobSpec job = Staged(2);
  job.mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM);
  job.mutable_train()->set_global_batch(4 * job.resources().nodes() * job.resources().ranks_per_node());
  const Plan plain = MakePlan(job, 0);
  job.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
  const Plan plan = MakePlan(job, 0);
  ASSERT_TRUE(plan.accepted()) << Text(plan.violations);
  ASSERT_TRUE(plain.accepted()) << Text(plain.violations);
  EXPECT_NE(plan.program_hash, plain.program_hash);
  const ModelFacts& last = (*plan.stages)[1].model;
  int64_t deferred = 0;
  for (const UnitFacts& unit : last.units) deferred += unit.deferred_bytes;
  EXPECT_GE((*plan.stages)[1].memory.Of("activations"),
            (*plain.stages)[1].memory.Of("activations") + deferred);
  EXPECT_EQ((*plan.stages)[0].memory.Of("optimizer"), (*plain.stages)[0].memory.Of("optimizer"));
}

TEST(Plan, InterleavedStagesListUnitsInModelOrder) {
  v1::JobSpec job = Staged(2);
  const int64_t ranks = job.resources().nodes() * job.resources().ranks_per_node();
  job.mutable_train()->set_global_batch(2 * job.train().micro_batch() * ranks);
  const Plan plain = MakePlan(job, 0);
  job.mutable_parallel()->set_pipeline_chunks(2);
  const Plan plan = MakePlan(job, 0);
  ASSERT_TRUE(plan.accepted()) << Text(plan.violations);
  const v1::Plan proto = ToProto(plan), whole = ToProto(MakePlan(TinyJob(), 0));
  ASSERT_EQ(proto.units_size(), whole.units_size());
  for (int u = 0; u < proto.units_size(); ++u) EXPECT_EQ(proto.units(u).name(), whole.units(u).name());
  ASSERT_EQ(proto.stages_size(), 2);
  for (const v1::Plan::Stage& stage : proto.stages()) EXPECT_EQ(stage.chunks_size(), 2);
  EXPECT_EQ(proto.stages(0).chunks(0).first_unit(), "embedding");
  EXPECT_EQ(proto.stages(1).chunks(1).last_unit(), "head");
  EXPECT_NE(plan.program_hash, plain.program_hash);
  EXPECT_EQ(MakePlan(plan.resolved, 0).program_hash, plan.program_hash);
}

TEST(Plan, FingerprintCoversAllStages) {
  const Plan plan = MakePlan(Staged(2), 0);
  const int64_t world = plan.spec.mesh.world();
  const Plan first = PlanOfRank(plan, 0), last = PlanOfRank(plan, world - 1);
  const auto own = [](const Plan& of) { return Fingerprint(of.spec, of.layout, of.program); };
  EXPECT_EQ(own(PlanOfRank(plan, 1)), own(first));
  EXPECT_NE(own(last), own(first));
  EXPECT_EQ(FingerprintOf(first), FingerprintOf(last));
  EXPECT_EQ(last.program_hash, HashOf(FingerprintOf(last)));
  EXPECT_EQ(first.layout.units.front().name, "embedding");
  EXPECT_EQ(last.layout.units.back().name, "head");
  EXPECT_EQ(FirstElements(plan, 0)[0][0], 0);
  EXPECT_EQ(FirstElements(plan, world - 1)[0][0], first.layout.elements());
}

TEST(Plan, StagesRecomputeAllOrNone) {
  v1::JobSpec job = Staged(2);
  job.mutable_train()->set_global_batch(4 * job.train().global_batch());
  const Plan roomy = MakePlan(job, int64_t{16} << 30);
  ASSERT_TRUE(roomy.accepted()) << Text(roomy.violations);
  EXPECT_EQ(roomy.spec.recompute, Recompute::kNone);
  const Plan tight = MakePlan(job, roomy.memory.peak_bytes * 9 / 10);
  ASSERT_TRUE(tight.accepted()) << Text(tight.violations);
  EXPECT_NE(tight.spec.recompute, Recompute::kNone);
  EXPECT_LT(tight.memory.peak_bytes, roomy.memory.peak_bytes);
}

TEST(Plan, IsEqualForResolvedSpec) {
  for (const v1::JobSpec& job : {TinyJob(), Llama8b(1), Llama8b(8)}) {
    const Plan first = MakePlan(job, int64_t{70} << 30);
    ASSERT_FALSE(first.layout.units.empty());
    const Plan again = MakePlan(first.resolved, 0);
    EXPECT_EQ(again.program_hash, first.program_hash);
    EXPECT_EQ(again.resolved.SerializeAsString(), first.resolved.SerializeAsString());
    EXPECT_TRUE(again.choices.empty());
  }
}

TEST(Plan, CountsLlama8bAt8And64Ranks) {
  for (const int64_t nodes : {1, 8}) {
    const Plan plan = MakePlan(Llama8b(nodes), 0);
    ASSERT_TRUE(plan.accepted()) << Text(plan.violations);
    const v1::Plan proto = ToProto(plan);
    EXPECT_EQ(proto.parameters(), 8030261248);
    int64_t parameters = 0, shard_bytes = 0;
    for (const v1::Plan::Unit& unit : proto.units()) {
      parameters += unit.parameters();
      shard_bytes += unit.shard_bytes();
    }
    EXPECT_EQ(parameters, 8030261248);
    std::map<std::string, int64_t> bytes = Components(plan);
    EXPECT_EQ(bytes["main_params"], shard_bytes);
    EXPECT_EQ(bytes["optimizer"], 2 * shard_bytes);
    EXPECT_EQ(bytes["gradients"], shard_bytes);
    EXPECT_EQ(bytes["gather_buffers"] + bytes["reduce_buffers"], plan.program.arena_bytes);
    EXPECT_GE(shard_bytes * 8 * nodes, 4 * parameters);
    EXPECT_LE(shard_bytes * 8 * nodes, 4.04 * parameters);
    int64_t sum = 0;
    for (const auto& component : proto.memory().components()) sum += component.bytes();
    EXPECT_EQ(proto.memory().peak_bytes(), sum);
    EXPECT_EQ(proto.world_size(), 8 * nodes);
    EXPECT_EQ(proto.program_hash().size(), 16u);
    // 6 FLOPs per matrix element and token, and attention on top: 7.5 B elements, 8192 tokens a sample.
    const double tokens = 64.0 * nodes * 8192;
    EXPECT_GT(proto.flops_per_step(), 6 * 7.5e9 * tokens);
    EXPECT_LT(proto.flops_per_step(), 6 * 8.9e9 * tokens);
  }
}

// The memory that nodes must report so that a rank may use `bytes`.
int64_t FreeFor(int64_t bytes) { return bytes + (int64_t{2} << 30); }

TEST(Plan, RecomputesOnlyAsNeeded) {
  const Plan roomy = MakePlan(Llama8b(8), int64_t{130} << 30);
  ASSERT_TRUE(roomy.accepted()) << Text(roomy.violations);
  EXPECT_EQ(roomy.spec.recompute, Recompute::kNone);
  int64_t last = roomy.memory.peak_bytes;
  int64_t last_layers = 0;
  for (const int64_t less : {1, 3, 6}) {
    const Plan tight = MakePlan(Llama8b(8), FreeFor(roomy.memory.peak_bytes - (less << 30)));
    ASSERT_TRUE(tight.accepted()) << Text(tight.violations);
    EXPECT_EQ(tight.spec.recompute, Recompute::kSelective);
    EXPECT_GT(tight.spec.recompute_layers, last_layers);
    EXPECT_LT(tight.memory.peak_bytes, last);
    EXPECT_NE(Find(tight, "fsdp.recompute")->reason.find("GiB"), std::string::npos);
    EXPECT_EQ(Find(tight, "fsdp.recompute_layers")->value, std::to_string(tight.spec.recompute_layers));
    last = tight.memory.peak_bytes;
    last_layers = tight.spec.recompute_layers;
  }
}

TEST(Plan, OverBudgetPlanHasMemoryTable) {
  v1::JobSpec job = Llama8b(1);
  const Plan plan = MakePlan(job, int64_t{8} << 30);
  ASSERT_FALSE(plan.accepted());
  ASSERT_EQ(plan.violations.size(), 1u);
  EXPECT_EQ(plan.violations[0].rule, "memory_over_budget");
  EXPECT_EQ(ToProto(plan).memory().components_size(), 10);
}

// Regression test: rule violations hid the memory violation, so users fixed a spec twice.
TEST(Plan, ReportsMemoryWithUnrelatedViolations) {
  v1::JobSpec job = Llama8b(1);
  job.set_name("Llama");
  job.mutable_optimizer()->mutable_adamw()->set_lr(-1);
  const Plan plan = MakePlan(job, int64_t{8} << 30);
  ASSERT_EQ(plan.violations.size(), 3u) << Text(plan.violations);
  EXPECT_EQ(plan.violations[2].rule, "memory_over_budget");
  EXPECT_TRUE(plan.program.instructions.empty()) << "a faulty spec has no plan";
  job.mutable_train()->set_micro_batch(-1);
  EXPECT_EQ(MakePlan(job, int64_t{8} << 30).violations.size(), 3u) << "memory cannot be judged";
}

TEST(Plan, WarnsOfBudgetAboveAllDevices) {
  v1::JobSpec job = TinyJob();
  job.mutable_resources()->set_memory_budget_bytes(int64_t{2} << 30);
  EXPECT_TRUE(MakePlan(job, int64_t{2} << 30).violations.empty());
  const Plan plan = MakePlan(job, int64_t{1} << 30);
  EXPECT_TRUE(plan.accepted());
  ASSERT_EQ(plan.violations.size(), 1u) << Text(plan.violations);
  EXPECT_EQ(plan.violations[0].rule, "budget_above_offer");
}

TEST(Plan, ChecksReadableRestOfSpec) {
  v1::JobSpec job = Llama8b(1);
  job.mutable_train()->clear_steps();
  const Plan plan = MakePlan(job, int64_t{8} << 30, {"train.steps"});
  ASSERT_EQ(plan.violations.size(), 1u) << Text(plan.violations);
  EXPECT_EQ(plan.violations[0].rule, "memory_over_budget");
  EXPECT_TRUE(MakePlan(job, int64_t{8} << 30, {"train.steps", "fsdp.strategy"}).violations.empty());
}

TEST(Plan, EvaluationSharesArena) {
  v1::JobSpec job = TinyJob();
  for (const bool asked : {false, true}) {
    if (asked) {
      v1::TokenFile* file = job.mutable_data()->add_validation();
      file->set_path("/data/validation.txt");
      file->set_type(v1::TOKEN_TYPE_U8);
      job.mutable_train()->mutable_evaluation()->set_every_steps(10);
    }
    const Plan plan = MakePlan(job, 0);
    ASSERT_TRUE(plan.accepted()) << Text(plan.violations);
    EXPECT_EQ(plan.evaluation.kind, ProgramKind::kEvaluation);
    EXPECT_FALSE(plan.evaluation.instructions.empty());
    EXPECT_LE(plan.evaluation.arena_bytes, plan.program.arena_bytes);
  }
}

TEST(Plan, AcceptsEveryStrategyAndMesh) {
  for (const v1::Strategy strategy : {v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM, v1::STRATEGY_OPTIM_GRADS,
                                      v1::STRATEGY_OPTIM_GRADS_PARAMS}) {
    v1::JobSpec job = TinyJob();
    job.mutable_fsdp()->set_strategy(strategy);
    const Plan plan = MakePlan(job, 0);
    EXPECT_TRUE(plan.accepted()) << Text(plan.violations);
    EXPECT_GT(plan.memory.peak_bytes, 0);
  }
  for (const v1::Strategy outer : {v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM}) {
    v1::JobSpec job = TinyJob();
    job.mutable_fsdp()->mutable_outer()->set_size(2);
    job.mutable_fsdp()->mutable_outer()->set_strategy(outer);
    EXPECT_TRUE(MakePlan(job, 0).accepted()) << Text(MakePlan(job, 0).violations);
  }
}

TEST(Plan, ReportsAdjustedPrefetch) {
  v1::JobSpec job = TinyJob();
  job.mutable_fsdp()->set_prefetch_bytes(int64_t{1} << 40);
  const Plan plan = MakePlan(job, 0);
  ASSERT_TRUE(plan.accepted());
  ASSERT_EQ(plan.violations.size(), 1u);
  EXPECT_EQ(plan.violations[0].level, ViolationLevel::kAdjust);
  EXPECT_EQ(std::to_string(plan.spec.prefetch_bytes), plan.violations[0].after);
}

TEST(Plan, MessageHasEveryInstruction) {
  const Plan plan = MakePlan(TinyJob(), 0);
  const v1::Plan proto = ToProto(plan);
  ASSERT_EQ(proto.instructions_size(), static_cast<int>(plan.program.instructions.size()));
  const auto& first = proto.instructions(0);
  EXPECT_EQ(first.op(), "Gather");
  EXPECT_EQ(first.unit(), "embedding");
  EXPECT_EQ(first.lane(), "gather");
}

TEST(Plan, MessageHasEveryMeshAxis) {
  const v1::Mesh mesh = ToProto(Mesh::DataParallel(2, 120).WithExpert(4).WithContext(3).WithTensor(5));
  EXPECT_EQ(mesh.replicate(), 2);
  EXPECT_EQ(mesh.shard(), 2);
  EXPECT_EQ(mesh.expert(), 4);
  EXPECT_EQ(mesh.context(), 3);
  EXPECT_EQ(mesh.tensor(), 5);
}

TEST(AcceptedPlan, RejectionListsOnlyErrors) {
  v1::JobSpec job;
  job.set_name("Not A Name");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(8);
  job.mutable_train()->set_steps(1);
  job.mutable_optimizer()->mutable_adamw()->set_lr(3);  // A warning.
  const std::string refusal(AcceptedPlan(job).status().message());
  EXPECT_EQ(refusal.find("name: "), 0u) << refusal;
  EXPECT_EQ(refusal.find("diverges"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace fsdpd
