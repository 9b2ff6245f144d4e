#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

// Four ranks.
v1::JobSpec GoodJob() {
  v1::JobSpec job;
  job.set_name("tiny-llama");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_train()->set_micro_batch(4);
  job.mutable_train()->set_global_batch(16);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_ranks_per_node(2);
  return job;
}

void Gpt2(v1::JobSpec* job) {
  v1::Gpt2* gpt2 = job->mutable_model()->mutable_gpt2();
  gpt2->set_vocab_size(512);
  gpt2->set_hidden_size(128);
  gpt2->set_layers(4);
  gpt2->set_heads(4);
  gpt2->set_positions(128);
}

v1::Llama* Llama(v1::JobSpec* job) {
  v1::Llama* llama = job->mutable_model()->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(128);
  llama->set_intermediate_size(384);
  llama->set_layers(4);
  llama->set_heads(12);
  llama->set_kv_heads(6);
  llama->set_head_size(16);
  return llama;
}

v1::Llama::Experts* WithExperts(v1::JobSpec* job) {
  job->mutable_resources()->set_device(v1::DEVICE_CPU);
  v1::Llama::Experts* experts = Llama(job)->mutable_experts();
  experts->set_count(8);
  experts->set_per_token(2);
  return experts;
}

struct BadCase {
  const char* rule;
  const char* field;
  std::function<void(v1::JobSpec*)> spoil;
};

std::vector<BadCase> BadCases() {
  using J = v1::JobSpec;
  return {
      {"parallel_tensor_range", "parallel.tensor", [](J* j) { j->mutable_parallel()->set_tensor(-2); }},
      {"parallel_tensor_range", "parallel.tensor", [](J* j) { j->mutable_parallel()->set_tensor(0); }},
      {"parallel_tensor_within_node", "parallel.tensor",  // Two nodes of two.
       [](J* j) { j->mutable_parallel()->set_tensor(4); }},
      {"parallel_tensor_within_node", "parallel.tensor",
       [](J* j) {
         j->mutable_fsdp()->mutable_outer()->set_size(4);
         j->mutable_parallel()->set_tensor(2);
       }},
      {"parallel_tensor_needs_llama", "parallel.tensor",
       [](J* j) {
         Gpt2(j);
         j->mutable_parallel()->set_tensor(2);
       }},
      {"parallel_tensor_cuts_model", "parallel.tensor",
       [](J* j) {
         Llama(j)->set_intermediate_size(127);
         j->mutable_parallel()->set_tensor(2);
       }},
      {"parallel_tensor_cuts_tokens", "data.sequence_length",
       [](J* j) {
         j->mutable_data()->set_sequence_length(127);
         j->mutable_train()->set_micro_batch(1);
         j->mutable_parallel()->set_tensor(2);
       }},
      {"parallel_context_divides_ranks", "parallel.context",
       [](J* j) {
         j->mutable_parallel()->set_tensor(2);
         j->mutable_parallel()->set_context(4);
       }},
      {"parallel_context_range", "parallel.context", [](J* j) { j->mutable_parallel()->set_context(-1); }},
      {"parallel_context_range", "parallel.context", [](J* j) { j->mutable_parallel()->set_context(0); }},
      {"parallel_context_divides_ranks", "parallel.context",
       [](J* j) { j->mutable_parallel()->set_context(8); }},
      {"parallel_context_divides_ranks", "parallel.context",
       [](J* j) {
         j->mutable_fsdp()->mutable_outer()->set_size(2);
         j->mutable_parallel()->set_context(4);
       }},
      {"parallel_context_needs_llama", "parallel.context",
       [](J* j) {
         Gpt2(j);
         j->mutable_parallel()->set_context(2);
       }},
      {"parallel_context_cuts_sequence", "data.sequence_length",
       [](J* j) {
         j->mutable_data()->set_sequence_length(130);
         j->mutable_parallel()->set_context(2);
       }},
      {"global_batch_divisible", "train.global_batch",  // Two groups of two ranks read four samples each.
       [](J* j) {
         j->mutable_train()->set_global_batch(12);
         j->mutable_parallel()->set_context(2);
       }},
  };
}

std::vector<BadCase> BadExpertCases() {
  using J = v1::JobSpec;
  return {
      {"parallel_expert_range", "parallel.expert", [](J* j) { j->mutable_parallel()->set_expert(0); }},
      {"parallel_expert_range", "parallel.expert", [](J* j) { j->mutable_parallel()->set_expert(-4); }},
      {"parallel_expert_divides_experts", "parallel.expert",  // Dense model.
       [](J* j) { j->mutable_parallel()->set_expert(2); }},
      {"parallel_expert_divides_experts", "parallel.expert",
       [](J* j) {
         WithExperts(j)->set_count(6);
         j->mutable_parallel()->set_expert(4);
       }},
      {"parallel_expert_divides_ranks", "parallel.expert",
       [](J* j) {
         WithExperts(j);
         j->mutable_parallel()->set_expert(8);
       }},
      {"parallel_expert_divides_ranks", "parallel.expert",
       [](J* j) {
         WithExperts(j);
         j->mutable_parallel()->set_context(2);
         j->mutable_parallel()->set_expert(4);
       }},
      {"parallel_expert_or_tensor", "parallel.expert",
       [](J* j) {
         WithExperts(j);
         j->mutable_parallel()->set_tensor(2);
         j->mutable_parallel()->set_expert(2);
       }},
  };
}

// Errors that no number of ranks fixes are reported immediately, not only after the number was fixed.
TEST(ParallelRules, ReportsUnsupportedModelWithInvalidGroups) {
  v1::JobSpec job = GoodJob();
  Gpt2(&job);
  job.mutable_parallel()->set_tensor(5);
  std::set<std::string> rules;
  for (const Violation& each : CheckJob(job)) rules.insert(each.rule);
  EXPECT_EQ(rules, (std::set<std::string>{"parallel_tensor_within_node", "parallel_tensor_needs_llama"}));
}

v1::Parallel* Staged(v1::JobSpec* job, int64_t stages) {
  job->mutable_resources()->set_device(v1::DEVICE_CPU);
  job->mutable_parallel()->set_pipeline(stages);
  return job->mutable_parallel();
}

// Six units.
std::vector<BadCase> BadPipelineCases() {
  using J = v1::JobSpec;
  return {
      {"parallel_pipeline_range", "parallel.pipeline", [](J* j) { Staged(j, 0); }},
      {"parallel_pipeline_range", "parallel.pipeline", [](J* j) { Staged(j, 1 << 20); }},
      {"parallel_pipeline_chunks_on_cpu", "parallel.pipeline_chunks",
       [](J* j) {
         Staged(j, 2)->set_pipeline_chunks(2), j->mutable_resources()->set_device(v1::DEVICE_CUDA);
       }},
      {"parallel_pipeline_divides_ranks", "parallel.pipeline", [](J* j) { Staged(j, 3); }},
      {"parallel_pipeline_divides_ranks", "parallel.pipeline", [](J* j) { Staged(j, 8); }},
      {"parallel_pipeline_divides_ranks", "parallel.pipeline",
       [](J* j) { Staged(j, 4), j->mutable_fsdp()->mutable_outer()->set_size(2); }},
      {"parallel_pipeline_needs_llama", "parallel.pipeline", [](J* j) { Gpt2(j), Staged(j, 2); }},
      {"parallel_pipeline_has_units", "parallel.pipeline",
       [](J* j) { Staged(j, 8), j->mutable_resources()->set_ranks_per_node(4); }},
      {"parallel_stage_units_sum", "parallel.stage_units", [](J* j) { Staged(j, 1)->add_stage_units(6); }},
      {"parallel_stage_units_sum", "parallel.stage_units", [](J* j) { Staged(j, 2)->add_stage_units(6); }},
      {"parallel_stage_units_sum", "parallel.stage_units",
       [](J* j) { Staged(j, 2)->add_stage_units(6), Staged(j, 2)->add_stage_units(0); }},
      {"parallel_stage_units_sum", "parallel.stage_units",
       [](J* j) { Staged(j, 2)->add_stage_units(3), Staged(j, 2)->add_stage_units(2); }},
      {"parallel_stage_units_sum", "parallel.stage_units",
       [](J* j) {
         Staged(j, 2)->set_pipeline_chunks(2);
         for (const int units : {3, 3}) j->mutable_parallel()->add_stage_units(units);
       }},
      {"parallel_pipeline_chunks_range", "parallel.pipeline_chunks",
       [](J* j) { Staged(j, 2)->set_pipeline_chunks(0); }},
      {"parallel_pipeline_chunks_range", "parallel.pipeline_chunks",
       [](J* j) { Staged(j, 1)->set_pipeline_chunks(2); }},
      {"parallel_pipeline_chunks_have_units", "parallel.pipeline_chunks",
       [](J* j) { Staged(j, 2)->set_pipeline_chunks(4); }},
      {"parallel_pipeline_chunks_micro_batches", "train.global_batch",
       [](J* j) {
         Staged(j, 2)->set_pipeline_chunks(2);
         j->mutable_train()->set_global_batch(24);
       }},
      {"parallel_pipeline_schedule_known", "parallel.pipeline_schedule",
       [](J* j) { Staged(j, 2)->set_pipeline_schedule(static_cast<v1::PipelineSchedule>(9)); }},
      {"parallel_zero_bubble_has_stages", "parallel.pipeline_schedule",
       [](J* j) { Staged(j, 1)->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE); }},
      {"parallel_zero_bubble_has_stages", "parallel.pipeline_schedule",
       [](J* j) {
         Staged(j, 2)->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
         j->mutable_parallel()->set_pipeline_chunks(2);
         j->mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM);
       }},
      {"parallel_zero_bubble_whole_gradients", "parallel.pipeline_schedule",
       [](J* j) {
         Staged(j, 2)->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
         j->mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM_GRADS);
       }},
      {"parallel_pipeline_trains", "train.frozen",
       [](J* j) { Staged(j, 2), j->mutable_train()->add_frozen("embedding.*"); }},
      {"parallel_pipeline_trains", "train.frozen",
       [](J* j) {
         Staged(j, 2)->add_stage_units(2), Staged(j, 2)->add_stage_units(4);
         for (const char* name : {"embedding.*", "layer.0.*"}) j->mutable_train()->add_frozen(name);
       }},
      {"parallel_tensor_within_node", "parallel.tensor",  // A stage has two replicas of one rank each.
       [](J* j) {
         Staged(j, 2)->set_tensor(2);
         j->mutable_fsdp()->mutable_outer()->set_size(2);
       }},
      {"parallel_context_divides_ranks", "parallel.context", [](J* j) { Staged(j, 2)->set_context(4); }},
      {"global_batch_divisible", "train.global_batch",  // Two ranks read four samples each.
       [](J* j) { Staged(j, 2), j->mutable_train()->set_global_batch(12); }},
  };
}

// Regression test: `device: tpu` hid global_batch_divisible and every other rule that counts ranks.
TEST(ParallelRules, UnknownDeviceHidesNoRankRule) {
  v1::JobSpec job = GoodJob();
  job.mutable_train()->set_global_batch(13);
  job.mutable_fsdp()->mutable_outer()->set_size(3);
  std::set<std::string> rules;
  for (const Violation& found : CheckJob(job, {"resources.device"})) rules.insert(found.rule);
  EXPECT_EQ(rules, (std::set<std::string>{"global_batch_divisible", "outer_size_divides"}));
  job.mutable_resources()->set_nodes(0);
  for (const Violation& found : CheckJob(job, {"resources.device"})) EXPECT_EQ(found.rule, "nodes_range");
}

TEST(ParallelRules, AcceptsStagesWithSomeTrainableParameters) {
  v1::JobSpec job = GoodJob();
  Staged(&job, 2);
  job.mutable_train()->add_frozen("*.attention.*");
  EXPECT_FALSE(HasErrors(CheckJob(job)));
  job.mutable_train()->add_frozen("embedding.*");
  job.mutable_parallel()->add_stage_units(2);
  job.mutable_parallel()->add_stage_units(4);
  EXPECT_FALSE(HasErrors(CheckJob(job)));
}

TEST(ParallelRules, EachCaseViolatesOnlyItsRule) {
  std::set<std::string> broken;
  std::vector<BadCase> cases = BadCases();
  for (const BadCase& of_experts : BadExpertCases()) cases.push_back(of_experts);
  for (const BadCase& of_stages : BadPipelineCases()) cases.push_back(of_stages);
  for (const BadCase& bad : cases) {
    v1::JobSpec job = GoodJob();
    bad.spoil(&job);
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1u) << bad.rule << ": " << job.DebugString();
    EXPECT_EQ(found[0].rule, bad.rule);
    EXPECT_EQ(found[0].field, bad.field);
    EXPECT_FALSE(found[0].fix.empty());
    broken.insert(bad.rule);
  }
  for (const RuleText& rule : AllRules()) {
    if (rule.id.find("parallel") == std::string::npos) continue;
    if (rule.id == "parallel_pipeline_not_timed") continue;  // Checked by the configuration search.
    EXPECT_EQ(broken.count(rule.id), 1u) << rule.id;
  }
}

TEST(ParallelRules, SuggestsNearestDivisibleLengths) {
  v1::JobSpec job = GoodJob();
  job.mutable_parallel()->set_context(4);
  job.mutable_train()->set_global_batch(4);
  job.mutable_data()->set_sequence_length(100);
  EXPECT_EQ(CheckJob(job)[0].fix, "write sequence_length: 96 or 104");
  job.mutable_data()->set_sequence_length(7);
  EXPECT_EQ(CheckJob(job)[0].fix, "write sequence_length: 8");
  job.mutable_parallel()->set_context(2);
  job.mutable_parallel()->set_tensor(4);
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(8);
  job.mutable_train()->set_micro_batch(1);
  job.mutable_data()->set_sequence_length(60);
  EXPECT_EQ(CheckJob(job)[0].fix, "write sequence_length: 56 or 64");
}

TEST(ParallelRules, SuggestsValidTensorDegrees) {
  v1::JobSpec job = GoodJob();
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(12);
  job.mutable_train()->set_global_batch(48);
  Llama(&job);
  job.mutable_parallel()->set_tensor(4);  // Six key heads neither divide 4 nor are divisible by it.
  const Violations found = CheckJob(job);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].reason, "6 key heads do not split into 4 equal parts");
  EXPECT_EQ(found[0].fix, "write tensor: 1 or 2");
  job.mutable_parallel()->set_tensor(3);
  EXPECT_EQ(CheckJob(job)[0].reason, "512 vocabulary entries do not split into 3 equal parts");
}

TEST(ParallelRules, AcceptsFewerKeyHeadsThanRanks) {
  v1::JobSpec job = GoodJob();
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(4);
  Llama(&job)->set_kv_heads(2);
  job.mutable_parallel()->set_tensor(4);
  EXPECT_FALSE(HasErrors(CheckJob(job)));
  job.mutable_model()->mutable_llama()->set_kv_heads(1);
  EXPECT_FALSE(HasErrors(CheckJob(job)));
}

TEST(ParallelRules, AcceptsContextParallel) {
  v1::JobSpec job = GoodJob();
  job.mutable_parallel()->set_context(2);
  EXPECT_FALSE(HasErrors(CheckJob(job)));
  job.mutable_fsdp()->mutable_outer()->set_size(2);
  EXPECT_FALSE(HasErrors(CheckJob(job)));
}

TEST(ParallelRules, ReportsRanksUsedByTensor) {
  v1::JobSpec job = GoodJob();
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(4);
  Llama(&job)->set_kv_heads(4);
  job.mutable_parallel()->set_tensor(4);
  job.mutable_parallel()->set_context(4);
  const Violations found = CheckJob(job);
  const auto fault = std::find_if(found.begin(), found.end(), [](const Violation& each) {
    return each.rule == "parallel_context_divides_ranks";
  });
  ASSERT_NE(fault, found.end());
  EXPECT_EQ(fault->reason,
            "4 ranks (all in one parallel.tensor group of 4) cannot be split into groups of 4");
  EXPECT_EQ(fault->fix, "leave parallel.context out, or write a smaller parallel.tensor");
}

// The fix of a violated rule.
std::string FixOf(const v1::JobSpec& job, const std::string& rule) {
  for (const Violation& each : CheckJob(job)) {
    if (each.rule == rule) return each.fix;
  }
  return "";
}

TEST(ParallelRules, ReportsRanksUsedByPipeline) {
  v1::JobSpec job = GoodJob();
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(2);
  Staged(&job, 2)->set_tensor(2);
  EXPECT_EQ(FixOf(job, "parallel_tensor_within_node"),
            "leave parallel.tensor out, or write a smaller parallel.pipeline");
  Staged(&job, 2)->set_tensor(1);
  Staged(&job, 2)->set_context(2);
  EXPECT_EQ(FixOf(job, "parallel_context_divides_ranks"),
            "leave parallel.context out, or write a smaller parallel.pipeline");
}

// Regression test: 6 stages were suggested for 8 ranks, which was rejected next.
TEST(ParallelRules, SuggestsStagesThatDivideRanks) {
  v1::JobSpec job = GoodJob();
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(8);
  Staged(&job, 8);
  EXPECT_EQ(FixOf(job, "parallel_pipeline_has_units"), "write pipeline: 4");
}

// An unset device means CUDA; a misspelled one must not.
TEST(ParallelRules, IgnoresUnreadDevice) {
  v1::JobSpec job = GoodJob();
  job.mutable_parallel()->set_pipeline(2);
  job.mutable_parallel()->set_pipeline_chunks(2);
  const auto chunks = [](const Violations& found) {
    return std::count_if(found.begin(), found.end(), [](const Violation& each) {
      return each.rule == "parallel_pipeline_chunks_on_cpu";
    });
  };
  EXPECT_EQ(chunks(CheckJob(job)), 1);
  EXPECT_EQ(chunks(CheckJob(job, {"resources.device"})), 0);
}

}  // namespace
}  // namespace fsdpd
