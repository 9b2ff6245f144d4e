// Routing biases that follow expert load (bias_update_rate), compared with routing that this test computes
// from weights and tokens, on every axis, and conditions under which they must not move.
//
// The attention output and the last matrices of experts are frozen at zero, so a router reads the norm of the
// token's embedding, and its choice can be computed without the model. Everything else is trained.
#include <ATen/core/Tensor.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>

#include "base/temp_dir.h"
#include "fsdp/data/batches.h"
#include "fsdp/engine/testing/test_job.h"
#include "fsdp/plan/verify/verify.h"

namespace fsdpd {
namespace {

constexpr double kRate = 0.02;
constexpr int kSteps = 4;

struct Case {
  TestMesh mesh;
  int world = 1;
  int micro_batches = 1;
  int tensor = 1;
  int context = 1;
  int expert = 1;
  int pipeline = 1;
  int chunks = 1;
  bool zero_bubble = false;
};

v1::Llama::Experts* ExpertsOf(v1::JobSpec* job) {
  return job->mutable_model()->mutable_llama()->mutable_experts();
}

// DeepSeek-V3 routing in all layers but the first.
v1::JobSpec BalancedJob() {
  v1::JobSpec job = TestJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(44);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_head_size(6);
  llama->set_layers(3);
  v1::Llama::Experts* experts = ExpertsOf(&job);
  experts->set_count(8);
  experts->set_per_token(3);
  experts->set_intermediate_size(12);
  experts->set_dense_layers(1);
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  experts->set_selection_bias(true);
  experts->set_bias_update_rate(kRate);
  experts->set_groups(4);
  experts->set_groups_per_token(2);
  experts->set_weight_scale(2.5);
  experts->set_shared_intermediate_size(24);
  experts->set_balance_loss(0.1);  // Trains routers, like the next.
  experts->set_z_loss(0.01);
  for (const char* frozen : {"*.wo", "*.w2"}) job.mutable_train()->add_frozen(frozen);
  job.mutable_data()->mutable_synthetic()->set_vocab(12);
  job.mutable_data()->set_sequence_length(24);
  job.mutable_train()->set_steps(kSteps);
  return job;
}

v1::JobSpec Spread(const v1::JobSpec& job, const Case& c) {
  v1::JobSpec spread = Over(job, c.mesh, c.world, c.micro_batches);
  v1::Parallel* parallel = spread.mutable_parallel();
  parallel->set_tensor(c.tensor);
  parallel->set_context(c.context);
  parallel->set_expert(c.expert);
  if (c.pipeline > 1) parallel->set_pipeline(c.pipeline);
  if (c.chunks > 1) parallel->set_pipeline_chunks(c.chunks);
  if (c.zero_bubble) parallel->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
  spread.mutable_train()->set_micro_batch(job.train().global_batch() * c.tensor * c.context * c.pipeline /
                                          c.world / c.micro_batches);
  return spread;
}

// Weights of a model as in LocalJobResult, by name.
class Weights {
 public:
  explicit Weights(const v1::JobSpec& job) : plan_(*AcceptedPlan(job)) {
    int64_t begin = 0;
    for (const UnitFacts& unit : plan_.model.units) {
      for (const ParamFacts& param : unit.params) {
        places_.push_back({unit.name + "." + param.name, begin, param.elements()});
        begin += param.elements();
      }
    }
    values_.resize(begin);
    Draw();
  }

  std::vector<float>& values() { return values_; }
  const std::vector<float>& values() const { return values_; }
  float* Of(const std::string& name) { return values_.data() + Find(name).begin; }
  std::vector<float> Copy(const std::string& name) const {
    const auto begin = values_.begin() + Find(name).begin;
    return {begin, begin + Find(name).elements};
  }
  // All biases of the model, layer by layer.
  std::vector<float> Biases() const {
    std::vector<float> all;
    for (int64_t layer = 0; layer < llama().layers; ++layer) {
      if (!llama().HasExperts(layer)) continue;
      const std::vector<float> of_layer = Copy(absl::StrCat("layer.", layer, ".ffn.router_bias"));
      all.insert(all.end(), of_layer.begin(), of_layer.end());
    }
    return all;
  }
  const Spec& spec() const { return plan_.spec; }
  const LlamaConfig& llama() const { return std::get<LlamaConfig>(plan_.spec.model); }

 private:
  struct Place {
    std::string name;
    int64_t begin = 0;
    int64_t elements = 0;
  };

  const Place& Find(const std::string& name) const {
    return *std::find_if(places_.begin(), places_.end(), [&](const Place& p) { return p.name == name; });
  }

  void Draw() {
    const auto drawn = [](int64_t i) {  // Pseudo-random, between -0.9 and 0.9.
      const double far = 43758.5453 * std::sin(12.9898 * static_cast<double>(i + 1));
      return static_cast<float>(1.8 * (far - std::floor(far)) - 0.9);
    };
    for (const Place& place : places_) {
      const bool nothing = absl::EndsWith(place.name, ".wo") || absl::EndsWith(place.name, ".w2");
      const bool norm = absl::StrContains(place.name, "norm");
      for (int64_t i = place.begin; i < place.begin + place.elements; ++i)
        values_[i] = nothing ? 0 : norm ? 1 + 0.2F * drawn(i) : drawn(i);
    }
    for (Place& place : places_) {
      for (int64_t i = 0; absl::EndsWith(place.name, "router_bias") && i < place.elements; ++i)
        values_[place.begin + i] *= 0.1F;
    }
  }

  Plan plan_;
  std::vector<Place> places_;
  std::vector<float> values_;
};

// The `per_token` experts with the highest scores, for a token in a layer.
std::vector<int64_t> Choose(const Weights& weights, int64_t layer, int64_t token) {
  const LlamaConfig& llama = weights.llama();
  const ExpertsConfig& experts = llama.experts;
  const std::string name = absl::StrCat("layer.", layer, ".");
  const std::vector<float> words = weights.Copy("embedding.weight"), norm = weights.Copy(name + "ffn_norm"),
                           router = weights.Copy(name + "ffn.router"),
                           bias = weights.Copy(name + "ffn.router_bias");
  const int64_t width = llama.hidden_size;
  const float* x = words.data() + token * width;
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + llama.norm_epsilon);
  std::vector<double> scores;
  for (int64_t e = 0; e < experts.count; ++e) {
    double product = 0;
    for (int64_t i = 0; i < width; ++i) product += x[i] * rstd * norm[i] * router[e * width + i];
    scores.push_back(1 / (1 + std::exp(-product)) + bias[e]);
  }
  const auto order = [](int64_t count, const std::function<double(int64_t)>& of) {
    std::vector<int64_t> ranks(count);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::sort(ranks.begin(), ranks.end(), [&](int64_t a, int64_t b) { return of(a) > of(b); });
    return ranks;
  };
  const int64_t of_group = experts.count / experts.groups;
  const std::vector<int64_t> groups = order(experts.groups, [&](int64_t group) {
    std::vector<double> own(scores.begin() + group * of_group, scores.begin() + (group + 1) * of_group);
    std::sort(own.rbegin(), own.rend());
    return experts.groups == 1 ? 0 : own[0] + own[1];
  });
  for (int64_t g = experts.groups_per_token; g < experts.groups; ++g)
    std::fill_n(scores.begin() + groups[g] * of_group, of_group, -1e9);
  std::vector<int64_t> chosen = order(experts.count, [&](int64_t e) { return scores[e]; });
  chosen.resize(experts.per_token);
  return chosen;
}

// The biases after a step that begins with these weights.
std::vector<float> Moved(const Weights& weights, int64_t step) {
  const ExpertsConfig& experts = weights.llama().experts;
  const auto batches = Batches::Open(weights.spec(), /*rank=*/0);
  Batch batch = MakeBatch(weights.spec());
  EXPECT_TRUE(batches.ok() && batches->Read(step, 0, &batch).ok());
  const auto* tokens = batch.tokens.const_data_ptr<int64_t>();
  std::vector<float> moved = weights.Biases();
  float* bias = moved.data();
  for (int64_t layer = experts.dense_layers; layer < weights.llama().layers; ++layer) {
    std::vector<std::vector<int64_t>> of_word(weights.llama().vocab_size);
    std::vector<int64_t> got(experts.count, 0);
    for (int64_t i = 0; i < batch.tokens.numel(); ++i) {
      if (of_word[tokens[i]].empty()) of_word[tokens[i]] = Choose(weights, layer, tokens[i]);
      for (const int64_t expert : of_word[tokens[i]]) ++got[expert];
    }
    const int64_t choices = batch.tokens.numel() * experts.per_token;
    for (const int64_t count : got) {
      const int64_t lacks = choices - count * experts.count;
      *bias++ += static_cast<float>(lacks > 0 ? kRate : lacks < 0 ? -kRate : 0);
    }
  }
  return moved;
}

Weights Starting(const v1::JobSpec& job, const std::vector<float>& values) {
  Weights weights(job);
  weights.values() = values;
  return weights;
}

LocalJobResult TrainFrom(const v1::JobSpec& job, const std::vector<float>& weights) {
  LocalJobOptions options;
  options.weights = weights;
  return Train(job, options);
}

// After each step, from the weights of the same ranks before it.
void ExpectMovesByChoices(const v1::JobSpec& alone, v1::JobSpec job) {
  Weights weights(alone);
  const std::vector<float> first = weights.values();
  int up = 0, down = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> before = weights.Biases(), expected = Moved(weights, step);
    for (size_t i = 0; i < expected.size(); ++i) {
      up += expected[i] > before[i];
      down += expected[i] < before[i];
    }
    job.mutable_train()->set_steps(step);
    weights.values() = TrainFrom(job, first).weights;
    EXPECT_EQ(weights.Biases(), expected) << "step " << step;
  }
  EXPECT_GT(up, 2 * kSteps);
  EXPECT_GT(down, 2 * kSteps);
}

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kOptim{"optim", v1::STRATEGY_OPTIM};
const TestMesh kGrads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};
const Case kFour{kParams, 4, 3};

std::vector<Case> Cases() {
  std::vector<Case> cases = {{kNoShard, 1, 1}, {kNoShard, 1, 3}};
  for (const TestMesh& mesh : {kNoShard, kOptim, kGrads, kParams, kHsdp, kHfsdp}) {
    cases.push_back({mesh, 2, 1});
    cases.push_back({mesh, 4, 3});
  }
  for (const TestMesh& mesh : {kNoShard, kParams}) {
    cases.push_back({mesh, 2, 1, 2});
    cases.push_back({mesh, 2, 3, 1, 2});
    cases.push_back({mesh, 4, 1, 2, 2});
    cases.push_back({mesh, 2, 3, 1, 1, 2});
    cases.push_back({mesh, 4, 1, 1, 1, 4});
    cases.push_back({mesh, 4, 3, 1, 2, 2});
    cases.push_back({mesh, 2, 3, 1, 1, 1, 2});
    cases.push_back({mesh, 4, 3, 1, 1, 2, 2});
    cases.push_back({mesh, 4, 1, 2, 1, 1, 2});
  }
  cases.push_back({kParams, 4, 2, 1, 1, 1, 2, 2});
  cases.push_back({kNoShard, 2, 3, 1, 1, 1, 2, 1, true});
  return cases;
}

class SelectionBiasMesh : public ::testing::TestWithParam<Case> {};

TEST_P(SelectionBiasMesh, MatchesReferenceUpdate) {
  ExpectMovesByChoices(BalancedJob(), Spread(BalancedJob(), GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Meshes, SelectionBiasMesh, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           const Case& c = info.param;
                           return absl::StrCat(c.mesh.name, "_world", c.world, "_mb", c.micro_batches,
                                               "_tensor", c.tensor, "_context", c.context, "_expert",
                                               c.expert, "_pipeline", c.pipeline, "x", c.chunks,
                                               c.zero_bubble ? "_zero" : "");
                         });

// Recompute in backward routes again, which must not be counted again.
TEST(SelectionBias, RecomputeIsBitIdentical) {
  for (const Case& c : {kFour, Case{kParams, 4, 3, 1, 1, 2}}) {
    const v1::JobSpec job = Spread(BalancedJob(), c);
    const std::vector<float> start = Weights(BalancedJob()).values();
    const LocalJobResult kept = TrainFrom(job, start);
    for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
      v1::JobSpec again = job;
      again.mutable_fsdp()->set_recompute(recompute);
      ExpectSame(kept, TrainFrom(again, start), 0);
    }
  }
}

TEST(SelectionBias, FrozenBiasDoesNotMove) {
  v1::JobSpec job = BalancedJob();
  job.mutable_train()->add_frozen("layer.1.ffn.router_bias");
  const Weights start(job);
  for (const Case& c : {Case{kNoShard, 1, 1}, kFour}) {
    const Weights end = Starting(job, TrainFrom(Spread(job, c), start.values()).weights);
    EXPECT_EQ(end.Copy("layer.1.ffn.router_bias"), start.Copy("layer.1.ffn.router_bias"));
    EXPECT_NE(end.Copy("layer.2.ffn.router_bias"), start.Copy("layer.2.ffn.router_bias"));
  }
}

// ---- With zero routers, every token chooses the experts with the highest biases.

constexpr double kSmallRate = 0.00005;
// Two of them are equal in bf16.
const std::vector<float> kAlmostAlike = {0.1F, 0.5F, 0.5004F, 0, -0.1F, 0.2F, 0.3F, -0.2F};

v1::JobSpec DecidedByBiases() {
  v1::JobSpec job = BalancedJob();
  v1::Llama::Experts* experts = ExpertsOf(&job);
  experts->set_per_token(1);
  experts->clear_groups();
  experts->clear_groups_per_token();
  experts->set_bias_update_rate(kSmallRate);
  job.mutable_train()->add_frozen("*.router");
  job.mutable_train()->set_steps(3);
  return job;
}

Weights StartOfDecided(const v1::JobSpec& job, const std::vector<float>& biases) {
  Weights start(job);
  for (const int layer : {1, 2}) {
    const std::string name = absl::StrCat("layer.", layer, ".ffn.");
    std::fill_n(start.Of(name + "router"), start.Copy(name + "router").size(), 0);
    float* const bias = start.Of(name + "router_bias");
    std::copy(biases.begin(), biases.end(), bias);
    if (layer == 2) std::reverse(bias, bias + biases.size());
  }
  return start;
}

std::vector<float> AfterMoves(std::vector<float> biases, int moves) {
  const auto highest = std::max_element(biases.begin(), biases.end()) - biases.begin();
  for (int i = 0; i < moves; ++i) {
    for (size_t e = 0; e < biases.size(); ++e)
      biases[e] += static_cast<float>(static_cast<int64_t>(e) == highest ? -kSmallRate : kSmallRate);
  }
  return biases;
}

void ExpectMoves(const v1::JobSpec& job, const LocalJobResult& result, std::vector<float> biases, int moves) {
  const Weights end = Starting(job, result.weights);
  EXPECT_EQ(end.Copy("layer.1.ffn.router_bias"), AfterMoves(biases, moves));
  std::reverse(biases.begin(), biases.end());
  EXPECT_EQ(end.Copy("layer.2.ffn.router_bias"), AfterMoves(biases, moves));
}

TEST(SelectionBias, IsUpdatedInFp32) {
  for (const v1::DType compute : {v1::DTYPE_FP32, v1::DTYPE_BF16, v1::DTYPE_FP16}) {
    v1::JobSpec job = DecidedByBiases();
    job.mutable_precision()->set_compute(compute);
    job.mutable_precision()->mutable_loss_scale()->set_initial(1024);
    if (compute != v1::DTYPE_FP16) job.mutable_precision()->clear_loss_scale();
    for (const Case& c : {Case{kNoShard, 1, 1}, kFour, Case{kParams, 4, 1, 2}, Case{kHfsdp, 4, 3},
                          Case{kParams, 4, 3, 1, 1, 2, 2}}) {
      ExpectMoves(job, TrainFrom(Spread(job, c), StartOfDecided(job, kAlmostAlike).values()), kAlmostAlike,
                  3);
    }
  }
}

TEST(SelectionBias, NonfiniteStepDoesNotMoveIt) {
  const std::vector<float> biases = {0.1F, 0.4F, 0.5F, 0, -0.1F, 0.2F, 0.3F, -0.2F};
  v1::JobSpec job = DecidedByBiases();
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  job.mutable_precision()->mutable_loss_scale()->set_initial(1 << 30);
  for (const Case& c : {Case{kNoShard, 1, 1}, kFour}) {
    for (const bool ahead : {false, true}) {
      LocalJobOptions options;
      options.weights = StartOfDecided(job, biases).values();
      options.run_ahead_on_cpu = ahead;
      for (const int steps : {1, 16}) {
        v1::JobSpec spread = Spread(job, c);
        spread.mutable_train()->set_steps(steps);
        const LocalJobResult result = Train(spread, options);
        int moves = 0;
        for (const v1::StepReport& report : result.reports[0]) moves += report.skipped() ? 0 : 1;
        EXPECT_EQ(moves == 0, steps == 1);
        EXPECT_LT(moves, steps);
        ExpectMoves(job, result, biases, moves);
      }
    }
  }
}

TEST(SelectionBias, EvaluationsDoNotMoveIt) {
  const TempDir dir;
  const std::string path = dir.File("text");
  std::string tokens;  // u16.
  for (int i = 0; i < 500; ++i) tokens += {static_cast<char>(i % 7 == 0 ? 5 : 3), '\0'};
  std::ofstream(path) << tokens;
  for (const Case& c : {Case{kNoShard, 1, 1}, kFour}) {
    for (const bool ahead : {false, true}) {
      const v1::JobSpec job = Spread(BalancedJob(), c);
      v1::JobSpec evaluated = job;
      v1::TokenFile* file = evaluated.mutable_data()->add_validation();
      file->set_path(path);
      file->set_type(v1::TOKEN_TYPE_U16);
      evaluated.mutable_train()->mutable_evaluation()->set_every_steps(1);
      LocalJobOptions options;
      options.weights = Weights(BalancedJob()).values();
      options.run_ahead_on_cpu = ahead;
      const LocalJobResult result = Train(evaluated, options);
      EXPECT_TRUE(result.reports[0][1].has_evaluation());
      ExpectSame(Train(job, options), result, 0);
    }
  }
}

TEST(SelectionBias, ResumeIsBitIdentical) {
  const std::vector<float> start = Weights(BalancedJob()).values();
  const Case cases[] = {{kNoShard, 1, 1}, kFour, {kHfsdp, 4, 3}, {kParams, 4, 3, 1, 1, 2, 2}};
  for (const v1::DType compute : {v1::DTYPE_FP32, v1::DTYPE_BF16}) {
    for (const Case& c : cases) {
      if (compute == v1::DTYPE_BF16 && c.world == 1) continue;
      const TempDir dir;
      v1::JobSpec job = Spread(BalancedJob(), c);
      job.mutable_precision()->set_compute(compute);
      job.mutable_train()->set_steps(5);
      const LocalJobResult whole = TrainFrom(job, start);
      v1::JobSpec saving = job, loading = job;
      saving.mutable_checkpoint()->set_dir(dir.path());
      saving.mutable_checkpoint()->set_every_steps(3);
      ExpectSame(whole, TrainFrom(saving, start), 0);
      loading.mutable_checkpoint()->set_load(dir.path() + "/iter_0000003");
      const LocalJobResult rest = Train(loading);
      ASSERT_EQ(rest.reports[0].size(), 2u);
      ExpectSameRest(whole, rest, 0);
      EXPECT_NE(Starting(BalancedJob(), whole.weights).Biases(), Weights(BalancedJob()).Biases());
    }
  }
}

TEST(SelectionBias, ResumesInAnotherMesh) {
  const TempDir dir;
  const std::vector<float> start = Weights(BalancedJob()).values();
  const LocalJobResult whole = TrainFrom(BalancedJob(), start);
  v1::JobSpec saving = Spread(BalancedJob(), {kParams, 4, 3, 1, 1, 2, 2});
  saving.mutable_checkpoint()->set_dir(dir.path());
  saving.mutable_checkpoint()->set_every_steps(2);
  TrainFrom(saving, start);
  for (const Case& c : {Case{kNoShard, 1, 1}, kFour, Case{kParams, 4, 1, 2}}) {
    v1::JobSpec loading = Spread(BalancedJob(), c);
    loading.mutable_checkpoint()->set_load(dir.path() + "/iter_0000002");
    const LocalJobResult rest = Train(loading);
    ExpectSameRest(whole, rest, 1e-5);
    EXPECT_EQ(Starting(BalancedJob(), rest.weights).Biases(),
              Starting(BalancedJob(), whole.weights).Biases());
  }
}

// ---- The purpose of the bias.

// Frozen routers and embeddings; all tokens prefer the first experts.
v1::JobSpec SkewedJob() {
  v1::JobSpec job = BalancedJob();
  v1::Llama::Experts* experts = ExpertsOf(&job);
  experts->set_per_token(2);
  experts->clear_groups();
  experts->clear_groups_per_token();
  for (const char* frozen : {"*.router", "embedding.*", "*.ffn_norm"})
    job.mutable_train()->add_frozen(frozen);
  job.mutable_train()->set_steps(50);
  return Spread(job, {kParams, 2, 1});
}

std::vector<float> Skewed() {
  Weights start(BalancedJob());
  const int64_t width = start.llama().hidden_size, experts = start.llama().experts.count;
  float* const words = start.Of("embedding.weight");
  for (int64_t token = 0; token < start.llama().vocab_size; ++token) words[token * width] += 3;
  for (const int layer : {1, 2}) {
    const std::string name = absl::StrCat("layer.", layer, ".ffn.");
    std::fill_n(start.Of(name + "router_bias"), experts, 0);
    float* const router = start.Of(name + "router");
    for (int64_t e = 0; e < experts; ++e) router[e * width] = 0.3F - 0.1F * static_cast<float>(e);
  }
  return start.values();
}

// For a few steps: the highest load over the mean.
double Imbalance(const LocalJobResult& result, size_t first, size_t count) {
  double sum = 0;
  for (size_t s = first; s < first + count; ++s) sum += result.reports[0][s].routing().imbalance();
  return sum / static_cast<double>(count);
}

TEST(SelectionBias, EvensSkewedRouting) {
  v1::JobSpec job = SkewedJob();
  const LocalJobResult moved = TrainFrom(job, Skewed());
  ExpertsOf(&job)->clear_bias_update_rate();
  const LocalJobResult stays = TrainFrom(job, Skewed());
  EXPECT_EQ(moved.reports[0][0].routing().imbalance(), stays.reports[0][0].routing().imbalance());
  EXPECT_GT(Imbalance(stays, 45, 5), 2);
  EXPECT_LT(Imbalance(moved, 45, 5), 0.75 * Imbalance(stays, 45, 5));
}

// ---- Planted errors.

TEST(SelectionBias, DetectsTheWrongSign) {
  Plan good = *AcceptedPlan(Spread(BalancedJob(), kFour));
  Plan bad = good;
  std::get<LlamaConfig>(bad.spec.model).experts.bias_update_rate = -kRate;
  const Weights start(BalancedJob());
  const std::vector<float> expected = Moved(start, 1);
  LocalJobOptions options;
  options.weights = Weights(BalancedJob()).values();
  for (Plan* plan : {&good, &bad}) {
    plan->spec.steps = 1;
    const auto result = RunLocalJob(*plan, options);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(Starting(BalancedJob(), result->weights).Biases() == expected, plan == &good);
  }
}

TEST(SelectionBias, RefusesSharedChoices) {
  const Plan good = *AcceptedPlan(Spread(BalancedJob(), kFour));
  EXPECT_TRUE(Verify(good.program, good.layout, good.spec).ok());
  Plan bad = good;
  for (Bucket& bucket : bad.layout.buckets) bucket.choices_begin = std::min<int64_t>(bucket.choices_begin, 0);
  bad.program = CompileProgram(bad.spec, bad.model, bad.layout);
  EXPECT_FALSE(Verify(bad.program, bad.layout, bad.spec).ok());
}

}  // namespace
}  // namespace fsdpd
