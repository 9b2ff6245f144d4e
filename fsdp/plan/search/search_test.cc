#include "fsdp/plan/search/search.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <random>
#include <set>
#include <string>

#include "base/seeds.h"
#include "fsdp/plan/memory/memory.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/prediction.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/search/candidates.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

v1::JobSpec Preset(const char* preset, int64_t nodes, int64_t global_batch) {
  v1::JobSpec job;
  job.set_name("job");
  job.mutable_model()->set_preset(preset);
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(8192);
  job.mutable_train()->set_steps(10);
  job.mutable_train()->set_global_batch(global_batch);
  job.mutable_resources()->set_nodes(nodes);
  job.mutable_resources()->set_ranks_per_node(8);
  return job;
}

Searched SearchedOf(const v1::JobSpec& job, SearchOptions options = {}, const char* profile = "h200") {
  const DeviceProfile& device = *FindProfile(profile);
  if (options.budget_bytes_per_rank == 0) options.budget_bytes_per_rank = device.budget_bytes();
  return SearchPlans(job, device, options);
}

// The job without searched fields.
v1::JobSpec Bare(v1::JobSpec job) {
  job.mutable_train()->set_global_batch(GlobalBatchOf(job));
  job.mutable_train()->clear_micro_batch();
  job.clear_parallel();
  job.clear_fsdp();
  return job;
}

TEST(Search, ListsFittingConfigurationsFastestFirst) {
  const v1::PlanSearch search = SearchedOf(Preset("llama3-8b", 1, 32)).search;
  ASSERT_EQ(search.found_size(), 5);
  EXPECT_TRUE(search.complete());
  EXPECT_GT(search.tried(), search.allowed());
  EXPECT_EQ(search.world_size(), 8);
  EXPECT_EQ(search.simulated(), 20);
  EXPECT_GE(search.simulated_fitting(), 5);
  EXPECT_LE(search.simulated_fitting(), 20);
  EXPECT_EQ(search.as_written_violations_size(), 0);
  double fastest = 0;
  for (const v1::PlanSearch::Configuration& way : search.found()) {
    EXPECT_GE(way.prediction().step_seconds(), fastest);
    fastest = way.prediction().step_seconds();
    EXPECT_TRUE(way.fits());
    EXPECT_LE(way.memory().peak_bytes(), search.budget_bytes());
    const v1::Mesh& mesh = way.mesh();
    EXPECT_EQ(mesh.replicate() * mesh.shard() * mesh.context() * mesh.tensor(), 8);
    EXPECT_EQ(way.micro_batches() * way.spec().train().micro_batch() * mesh.replicate() * mesh.shard(), 32);
  }
  ASSERT_TRUE(search.has_as_written());
  EXPECT_LE(search.found(0).prediction().step_seconds(), search.as_written().prediction().step_seconds());
  EXPECT_FALSE(search.has_closest());
}

// Regression test: on one rank all strategies are equivalent, and filled the list.
TEST(Search, RemovesEquivalentConfigurations) {
  v1::JobSpec job = Preset("tiny", 1, 1);
  job.mutable_resources()->set_ranks_per_node(1);
  job.mutable_data()->set_sequence_length(8);
  const v1::PlanSearch search = SearchedOf(job).search;
  ASSERT_GE(search.found_size(), 1);
  EXPECT_GT(search.simulated_fitting(), search.found_size());
  std::set<std::string> told;
  for (const v1::PlanSearch::Configuration& way : search.found()) {
    EXPECT_TRUE(told.insert(absl::StrCat(way.prediction().step_seconds(), " ", way.memory().peak_bytes(), " ",
                                         way.mesh().ShortDebugString()))
                    .second)
        << way.spec().fsdp().ShortDebugString();
  }
}

TEST(Search, KeepsTrainingSettings) {
  v1::JobSpec job = Preset("llama3-8b", 1, 16);
  job.mutable_train()->set_micro_batch(2);
  job.mutable_parallel()->set_tensor(2);
  job.mutable_precision()->set_moments(v1::DTYPE_BF16);
  job.mutable_checkpoint()->set_dir("/runs/1");
  const v1::PlanSearch search = SearchedOf(job).search;
  ASSERT_GT(search.found_size(), 0);
  for (const v1::PlanSearch::Configuration& way : search.found()) {
    EXPECT_EQ(Bare(way.spec()).SerializeAsString(), Bare(job).SerializeAsString());
  }
}

// A default global batch follows the micro-batch, and would differ between configurations.
TEST(Search, WritesDefaultGlobalBatch) {
  v1::JobSpec job = Preset("llama3-8b", 1, 0);
  job.mutable_train()->clear_global_batch();
  job.mutable_train()->set_micro_batch(2);
  const v1::PlanSearch search = SearchedOf(job).search;
  EXPECT_EQ(search.global_batch(), 16);
  ASSERT_GT(search.found_size(), 0);
  for (const v1::PlanSearch::Configuration& way : search.found())
    EXPECT_EQ(way.spec().train().global_batch(), 16);
}

TEST(Search, PlanMatchesSearchResult) {
  const v1::PlanSearch search = SearchedOf(Preset("llama3-70b", 8, 64)).search;
  ASSERT_GT(search.found_size(), 0);
  for (const v1::PlanSearch::Configuration& way : search.found()) {
    const Plan plan = MakePlan(way.spec(), FindProfile("h200")->budget_bytes());
    ASSERT_TRUE(plan.accepted());
    EXPECT_EQ(plan.program_hash, way.program_hash());
    EXPECT_EQ(plan.memory.peak_bytes, way.memory().peak_bytes());
    EXPECT_FALSE(way.spec().fsdp().recompute() == v1::RECOMPUTE_UNSPECIFIED);
  }
}

TEST(Search, KeepsHeldFields) {
  v1::JobSpec job = Preset("llama3-8b", 1, 32);
  job.mutable_parallel()->set_context(2);
  job.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
  SearchOptions options;
  options.held = {"parallel", "fsdp.recompute"};
  const v1::PlanSearch search = SearchedOf(job, options).search;
  ASSERT_GT(search.found_size(), 0);
  for (const v1::PlanSearch::Configuration& way : search.found()) {
    EXPECT_EQ(way.mesh().context(), 2);
    EXPECT_EQ(way.mesh().tensor(), 1);
    EXPECT_EQ(way.spec().fsdp().recompute(), v1::RECOMPUTE_FULL);
  }
}

// CPU ranks with little memory, on links slower than a bubble.
TEST(Search, FindsPipelineIfFaster) {
  v1::JobSpec job = Preset("llama3-8b", 8, 512);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  DeviceProfile slow = *FindProfile("h200");
  slow.network_gather_bytes_per_second /= 40;
  slow.network_reduce_bytes_per_second /= 40;
  SearchOptions options;
  options.held = {"parallel.tensor", "parallel.context", "fsdp.outer"};
  options.budget_bytes_per_rank = slow.budget_bytes();
  const v1::PlanSearch search = SearchPlans(job, slow, options).search;
  ASSERT_GT(search.found_size(), 0);
  EXPECT_EQ(search.not_tried_size(), 0);
  const v1::PlanSearch::Configuration& fastest = search.found(0);
  EXPECT_GT(fastest.mesh().pipeline(), 1);
  EXPECT_GT(fastest.prediction().bubble_seconds(), 0);
  EXPECT_LT(fastest.prediction().step_seconds(), search.as_written().prediction().step_seconds());
  const Plan plan = MakePlan(fastest.spec(), slow.budget_bytes());
  ASSERT_TRUE(plan.accepted());
  EXPECT_EQ(plan.program_hash, fastest.program_hash());
}

TEST(Search, SearchesExpertParallelForPresets) {
  v1::JobSpec job = Preset("qwen3-30b-a3b", 1, 8);
  job.mutable_data()->set_sequence_length(4096);
  bool tried = false;
  VisitCandidates(job, {}, [&](const v1::JobSpec& way) {
    tried |= way.parallel().expert() == 8;
    return Visit::kContinue;
  });
  EXPECT_TRUE(tried);
}

TEST(Search, FindsConfigurationsThatNeedOffload) {
  v1::JobSpec job = Preset("llama3.1-8b", 1, 8);
  job.mutable_data()->set_sequence_length(32768);
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_precision()->set_moments(v1::DTYPE_BF16);
  job.mutable_precision()->set_main_grads(v1::DTYPE_BF16);
  job.mutable_fsdp()->set_recompute(v1::RECOMPUTE_NONE);
  job.mutable_fsdp()->set_memory(v1::MEMORY_RECOMPUTE_OR_OFFLOAD);
  const Plan plan = PlanWithoutAdvice(job, FindProfile("h100")->budget_bytes());
  ASSERT_TRUE(plan.accepted());
  ASSERT_GT(plan.spec.offloaded_layers, 0);
  SearchOptions options;
  options.held = {"fsdp.recompute"};
  const v1::PlanSearch search = SearchedOf(job, options, "h100").search;
  ASSERT_GT(search.found_size(), 0);
  EXPECT_GT(search.found(0).spec().fsdp().offload().activation_layers(), 0);
}

// Over four ranks, a row of w2 has 96 numbers, not a multiple of an NF4 block.
v1::JobSpec LoraJob(v1::BaseType type) {
  v1::JobSpec job = Preset("tiny", 1, 32);
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(1024);
  llama->set_hidden_size(512);
  llama->set_intermediate_size(384);
  llama->set_layers(4);
  llama->set_heads(8);
  job.mutable_train()->mutable_lora()->set_rank(8);
  job.mutable_train()->mutable_lora()->set_base_type(type);
  return job;
}

bool SupportsNf4(const v1::JobSpec& way) {
  const v1::JobSpec filled = WithDefaults(way, nullptr);
  const v1::Fsdp& fsdp = filled.fsdp();
  return fsdp.strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS && !fsdp.keep_gathered() &&
         (fsdp.outer().size() == 1 || fsdp.outer().strategy() != v1::STRATEGY_OPTIM) &&
         filled.parallel().tensor() <= 2;
}

TEST(Search, FindsConfigurationsOfLoraJobs) {
  for (const v1::Device device : {v1::DEVICE_CUDA, v1::DEVICE_CPU}) {
    int64_t allowed = 0, with_nf4 = 0;
    v1::JobSpec job = LoraJob(v1::BASE_TYPE_COMPUTE), in_nf4 = LoraJob(v1::BASE_TYPE_NF4);
    for (v1::JobSpec* each : {&job, &in_nf4}) each->mutable_resources()->set_device(device);
    VisitCandidates(job, {}, [&](const v1::JobSpec& way) {
      const bool accepted = !HasErrors(CheckJob(way));
      EXPECT_FALSE(accepted && way.parallel().pipeline_schedule() == v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
      allowed += accepted ? 1 : 0;
      with_nf4 += accepted && SupportsNf4(way) ? 1 : 0;
      return Visit::kContinue;
    });
    const v1::PlanSearch search = SearchedOf(job).search, narrow = SearchedOf(in_nf4).search;
    EXPECT_EQ(search.allowed(), allowed);
    EXPECT_EQ(narrow.allowed(), with_nf4);
    EXPECT_LT(0, with_nf4);
    EXPECT_LT(with_nf4, allowed);
    for (const v1::PlanSearch& each : {search, narrow}) {
      ASSERT_GT(each.found_size(), 0);
      for (const v1::PlanSearch::Configuration& way : each.found()) {
        const Plan plan = MakePlan(way.spec(), each.budget_bytes());
        ASSERT_TRUE(plan.accepted());
        EXPECT_EQ(plan.program_hash, way.program_hash());
      }
    }
    for (const v1::PlanSearch::Configuration& way : narrow.found()) EXPECT_TRUE(SupportsNf4(way.spec()));
  }
}

TEST(Search, ReportsWhyPipelineIsNotSearched) {
  const v1::PlanSearch search = SearchedOf(Preset("llama3-8b", 1, 32)).search;
  ASSERT_EQ(search.not_tried_size(), 1);
  EXPECT_EQ(search.not_tried(0).rule(), "parallel_pipeline_not_timed");
  SearchOptions held;
  held.held = {"parallel"};
  EXPECT_EQ(SearchedOf(Preset("llama3-8b", 1, 32), held).search.not_tried_size(), 0);
}

TEST(Search, ReportsClosestIfNothingFits) {
  SearchOptions options;
  options.budget_bytes_per_rank = 40 * kGiB;
  const v1::PlanSearch search = SearchedOf(Preset("llama3-70b", 1, 8), options).search;
  EXPECT_EQ(search.found_size(), 0);
  ASSERT_TRUE(search.has_closest());
  EXPECT_FALSE(search.closest().fits());
  EXPECT_GT(search.closest().memory().peak_bytes(), search.budget_bytes());
  EXPECT_TRUE(search.complete());
}

TEST(Search, ReportsViolationsIfEveryConfigurationIsRejected) {
  v1::JobSpec job = Preset("llama3-8b", 1, 32);
  job.mutable_model()->set_preset("llama3-9b");
  const Searched searched = SearchedOf(job);
  EXPECT_TRUE(HasErrors(searched.violations));
  EXPECT_EQ(searched.search.found_size(), 0);
  for (const int64_t wrong : {-1, 0}) {
    v1::JobSpec none = Preset("llama3-8b", 1, 32);
    none.mutable_resources()->set_ranks_per_node(wrong);
    EXPECT_TRUE(HasErrors(SearchedOf(none).violations));
  }
}

// Eight samples do not divide over sixteen data-parallel ranks.
TEST(Search, FindsConfigurationsForRejectedSpec) {
  const Searched searched = SearchedOf(Preset("llama3-8b", 2, 8));
  ASSERT_GT(searched.search.found_size(), 0);
  EXPECT_FALSE(searched.search.has_as_written());
  ASSERT_EQ(searched.search.as_written_violations_size(), 1);
  EXPECT_EQ(searched.search.as_written_violations(0).rule(), "global_batch_divisible");
  EXPECT_GT(searched.search.found(0).mesh().context() * searched.search.found(0).mesh().tensor(), 1);
}

TEST(Search, ReturnsResultAfterTimeLimit) {
  int asked = 0;
  SearchOptions options;
  options.spent = [&asked] { return ++asked > 30 ? 1.5 : 0; };
  const v1::PlanSearch search = SearchedOf(Preset("llama3-8b", 1, 32), options).search;
  EXPECT_FALSE(search.complete());
  EXPECT_LT(search.tried(), 30);
  EXPECT_EQ(search.simulated(), 1);
  EXPECT_EQ(search.found_size(), 1);
  EXPECT_FALSE(search.has_as_written());
}

TEST(Search, ReservesTimeForSimulation) {
  int asked = 0;
  SearchOptions options;
  options.spent = [&asked] { return ++asked > 250 ? 0.8 : 0; };
  const v1::PlanSearch search = SearchedOf(Preset("llama3-8b", 1, 32), options).search;
  EXPECT_FALSE(search.complete());
  EXPECT_LT(search.tried(), 250);
  EXPECT_EQ(search.simulated(), 20);
}

TEST(Search, StopsWhenCancelled) {
  int asked = 0;
  SearchOptions options;
  options.spent = [&asked] { return ++asked > 30 ? kCancelled : 0; };
  const v1::PlanSearch search = SearchedOf(Preset("llama3-8b", 1, 32), options).search;
  EXPECT_LT(search.tried(), 30);
  EXPECT_EQ(search.simulated(), 0);
  EXPECT_FALSE(search.has_as_written());
}

// 7919 is prime, so no configuration exists.
TEST(Search, PollsTimeLimitWithoutCandidates) {
  int asked = 0;
  SearchOptions options;
  options.spent = [&asked] { return ++asked > 30 ? 0.8 : 0; };
  const Searched searched = SearchedOf(Preset("llama3-8b", 1890, 7919), options);
  EXPECT_EQ(asked, 31);
  EXPECT_FALSE(searched.search.complete());
  EXPECT_TRUE(HasErrors(searched.violations));
}

TEST(Search, ReportsTimeLimitWithoutResult) {
  SearchOptions options;
  options.spent = [] { return 0.8; };
  const Searched searched = SearchedOf(Preset("llama3-8b", 1, 32), options);
  ASSERT_EQ(searched.violations.size(), 1);
  EXPECT_EQ(searched.violations[0].reason, "the time limit ended before any configuration was tried");
  EXPECT_EQ(searched.search.world_size(), 8);
}

TEST(Search, RejectsTooManyRanks) {
  v1::JobSpec job = Preset("llama3-8b", 2049, 16);
  SearchOptions options;
  options.spent = []() -> double {
    ADD_FAILURE() << "there is no way to ask before";
    return 0;
  };
  EXPECT_TRUE(HasErrors(SearchedOf(job, options).violations));
}

TEST(Search, RejectsHoldingUnsearchedField) {
  EXPECT_TRUE(CheckHeld({"parallel", "fsdp.outer", "train.micro_batch", "fsdp"}).empty());
  const Violations violations = CheckHeld({"fsdp.outr", "train.steps", ""});
  ASSERT_EQ(violations.size(), 3);
  EXPECT_NE(violations[0].fix.find("fsdp.outer"), std::string::npos);
  const std::vector<std::string> many(kMaxHeld + 1, "fsdp");
  ASSERT_EQ(CheckHeld(many).size(), 1);
  EXPECT_EQ(CheckHeld(many)[0].field, "hold");
}

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + std::uniform_int_distribution<size_t>(0, values.size() - 1)(random_));
  }

 private:
  std::mt19937 random_;
};

v1::JobSpec RandomJob(Dice* dice) {
  v1::JobSpec job;
  job.set_name("random");
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(dice->Of({32768, 128256}));
  llama->set_hidden_size(dice->Of({1024, 4096, 8192}));
  llama->set_intermediate_size(llama->hidden_size() * dice->Of({2, 4}));
  llama->set_layers(dice->Of({3, 6, 12}));
  llama->set_heads(llama->hidden_size() / 128);
  llama->set_kv_heads(dice->Of({4, 8}));
  llama->set_tied_embeddings(dice->Of({false, false, true}));
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(dice->Of({1024, 8192, 32768}));
  job.mutable_resources()->set_nodes(dice->Of({1, 2, 4}));
  job.mutable_resources()->set_ranks_per_node(dice->Of({2, 4}));
  const int64_t world = job.resources().nodes() * job.resources().ranks_per_node();
  job.mutable_train()->set_steps(1);
  job.mutable_train()->set_global_batch(world * dice->Of({1, 2, 4, 6}));
  job.mutable_precision()->set_grad_comm(dice->Of({v1::DTYPE_FP32, v1::DTYPE_UNSPECIFIED, v1::DTYPE_BF16}));
  return job;
}

DeviceProfile RandomProfile(Dice* dice) {
  DeviceProfile profile = *FindProfile("h200");
  const double node = dice->Of({0.1, 0.5, 1.0}), network = dice->Of({0.02, 0.2, 1.0});
  profile.node_gather_bytes_per_second *= node;
  profile.node_reduce_bytes_per_second *= node;
  profile.network_gather_bytes_per_second *= std::min(node, network);
  profile.network_reduce_bytes_per_second *= std::min(node, network);
  profile.outer_gather_bytes_per_second *= network;
  profile.outer_reduce_bytes_per_second *= network;
  profile.collective_latency_seconds *= dice->Of({0.1, 1.0, 10.0});
  profile.memory_bytes = static_cast<double>(dice->Of({10, 20, 40, 80}) * kGiB);
  return profile;
}

struct Fastest {
  double seconds = std::numeric_limits<double>::infinity();
  v1::JobSpec way;
  int ways = 0;
};

// By exhaustive simulation.
Fastest FastestOfAll(const v1::JobSpec& job, const DeviceProfile& profile) {
  Fastest fastest;
  VisitCandidates(job, {}, [&](const v1::JobSpec& way) {
    const Plan plan = PlanWithoutAdvice(way, profile.budget_bytes());
    if (!plan.accepted()) return Visit::kContinue;
    ++fastest.ways;
    v1::Plan proto;
    AddPrediction(plan, profile, /*timeline=*/false, &proto);
    const double seconds = proto.prediction().step_seconds();
    if (seconds >= fastest.seconds) return Visit::kContinue;
    fastest.seconds = seconds;
    fastest.way = way;
    return Visit::kContinue;
  });
  return fastest;
}

double RatioOf(int64_t estimate, int64_t planned) {
  return static_cast<double>(estimate) / static_cast<double>(planned);
}

// Configurations rejected by the estimate are not simulated.
TEST(Search, MemoryEstimateIsNearPlan) {
  int ways = 0, off = 0;
  for (int seed = 0; seed < Seeds(5); ++seed) {
    Dice dice(seed);
    const v1::JobSpec job = RandomJob(&dice);
    VisitCandidates(job, {}, [&](const v1::JobSpec& way) {
      const Plan plan = PlanWithoutAdvice(way, /*budget_bytes_per_rank=*/0);
      if (!plan.accepted()) return Visit::kContinue;
      const StepMemory estimate = EstimateMemory(plan.spec, plan.model, plan.layout);
      const double ratio = RatioOf(estimate.peak_bytes, plan.memory.peak_bytes);
      EXPECT_LT(ratio, 1.09) << "seed " << seed << ": " << way.ShortDebugString();
      EXPECT_GT(ratio, 0.85) << "seed " << seed << ": " << way.ShortDebugString();
      ++ways;
      off += ratio < 0.98 || ratio > 1.02 ? 1 : 0;
      return Visit::kContinue;
    });
  }
  EXPECT_GT(ways, 100);
  EXPECT_LT(off, ways / 4);
}

// Configurations ranked low by the estimate are not simulated.
TEST(Search, SimulatesFastestConfiguration) {
  const int seeds = Seeds(10);
  int large = 0, missed = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    Dice dice(seed);
    const v1::JobSpec job = RandomJob(&dice);
    const DeviceProfile profile = RandomProfile(&dice);
    const Fastest fastest = FastestOfAll(job, profile);
    SearchOptions options;
    options.budget_bytes_per_rank = profile.budget_bytes();
    const v1::PlanSearch search = SearchPlans(job, profile, options).search;
    EXPECT_EQ(search.found_size() > 0, fastest.ways > 0) << "seed " << seed;
    if (fastest.ways == 0 || search.found_size() == 0) continue;
    large += fastest.ways > 3 * options.simulated ? 1 : 0;
    const double found = search.found(0).prediction().step_seconds();
    missed += found > fastest.seconds * (1 + 1e-9) ? 1 : 0;
    EXPECT_LE(found, fastest.seconds * 1.05) << "seed " << seed << ": of " << fastest.ways << " ways\n"
                                             << fastest.way.ShortDebugString() << "\n"
                                             << search.found(0).spec().ShortDebugString();
  }
  EXPECT_LE(missed, seeds / 100);  // None in the commit tier.
  EXPECT_GT(large, seeds / 4);     // Otherwise there is little to choose from.
}

}  // namespace
}  // namespace fsdpd
