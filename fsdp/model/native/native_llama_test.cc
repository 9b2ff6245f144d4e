#include "fsdp/model/native/native_llama.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "fsdp/memory/host_caching_allocator.h"
#include "fsdp/model/testing/autograd_llama.h"
#include "fsdp/model/testing/plain_params.h"
#include "fsdp/model/testing/unit_chain.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

constexpr double kScale = 10;  // Of test parameters, see TestParams.

struct Case {
  const char* name;
  LlamaConfig config;
  int64_t micro_batch;
  int64_t sequence;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

LlamaConfig Small(int64_t kv_heads) {
  LlamaConfig config;
  config.vocab_size = 37;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = kv_heads;
  config.head_size = 6;
  config.rope_theta = 100;
  return config;
}

template <typename Change>
LlamaConfig With(LlamaConfig config, Change change) {
  change(&config);
  return config;
}

// All model families and their special cases.
std::vector<Case> Cases() {
  return {
      {"Llama", Small(4), 2, 6},
      {"GroupedQueries", Small(2), 3, 5},
      {"OneKeyHead", Small(1), 1, 7},
      {"OneToken", Small(2), 1, 1},
      {"StretchedPositions",
       With(Small(2),
            [](LlamaConfig* c) {
              c->rope_scaling = {8, 1, 4, 32};
            }),
       2, 33},
      {"Qwen2", With(Small(2), [](LlamaConfig* c) { c->attention_bias = true; }), 2, 6},
      {"Qwen3",
       With(Small(2),
            [](LlamaConfig* c) {
              c->qk_norm = true;
              c->head_size = 10;  // heads * head_size differs from hidden_size.
              c->tied_embeddings = true;
            }),
       2, 9},
      {"Everything",
       With(Small(1),
            [](LlamaConfig* c) {
              c->qk_norm = c->attention_bias = c->tied_embeddings = true;
              c->hidden_size = 17;
              c->intermediate_size = 5;
              c->rope_scaling = {4, 1, 4, 16};
            }),
       3, 11},
      {"Latents",
       With(Small(4),
            [](LlamaConfig* c) {
              SetLatent({8, 10, 6, 4, 5}, c);
            }),
       2, 9},
      {"LatentOfKeysAlone",
       With(Small(4),
            [](LlamaConfig* c) {
              SetLatent({7, 0, 3, 6, 9, false}, c);
            }),
       3, 5},
      {"LatentsThatFillTheKernel",
       With(Small(4),
            [](LlamaConfig* c) {
              SetLatent({7, 5, 4, 4, 8}, c);
            }),
       1, 7},
      {"LatentOfKeysThatFillsTheKernel",
       With(Small(4),
            [](LlamaConfig* c) {
              SetLatent({6, 0, 6, 2, 8}, c);
            }),
       2, 6},
      {"LatentsWithYarn",
       With(Small(4),
            [](LlamaConfig* c) {
              SetLatent({8, 10, 6, 8, 5}, c);
              c->rope_scaling = {8, 1, 4, 32, /*yarn=*/true, /*mscale=*/0.7, /*mscale_all_dim=*/1.2};
            }),
       2, 33},
      {"HeadsWithYarn",
       With(Small(2),
            [](LlamaConfig* c) {
              c->rope_scaling = {8, 1, 32, 64, /*yarn=*/true};
            }),
       2, 33},
  };
}

std::vector<Case> CasesWithExperts() {
  return {
      {"Mixtral",
       With(Small(2),
            [](LlamaConfig* c) {
              c->experts = {4, 2, 12};
            }),
       2, 9},
      {"Qwen3Moe",
       With(Small(2),
            [](LlamaConfig* c) {
              c->qk_norm = true;
              c->experts = {5, 3, 7, /*normalized=*/false, /*dense_layers=*/1};
            }),
       3, 8},
      {"DeepSeekRouting",
       With(Small(2),
            [](LlamaConfig* c) {
              c->qk_norm = true;
              c->experts = {8, 3, 7};
              c->experts.dense_layers = 1;
              c->experts.sigmoid = true;
              c->experts.groups = 4;
              c->experts.groups_per_token = 2;
              c->experts.weight_scale = 2.5;
              c->experts.shared_intermediate_size = 14;
            }),
       3, 8},
      {"DeepSeek",
       With(Small(4),
            [](LlamaConfig* c) {
              SetLatent({8, 10, 6, 4, 5}, c);
              c->experts = {8, 3, 7};
              c->experts.dense_layers = 1;
              c->experts.sigmoid = true;
              c->experts.shared_intermediate_size = 14;
            }),
       2, 8},
      {"DeepSeekV2",
       With(Small(4),
            [](LlamaConfig* c) {
              SetLatent({8, 10, 6, 4, 5}, c);
              c->experts = {9, 3, 7, /*normalized=*/false, /*dense_layers=*/1};
              c->experts.groups = 3;
              c->experts.groups_per_token = 2;
              c->experts.groups_by_best = true;
              c->experts.weight_scale = 3;
              c->experts.shared_intermediate_size = 14;
            }),
       2, 8},
      {"OneExpert",
       With(Small(2),
            [](LlamaConfig* c) {
              c->experts = {1, 1, 12};
            }),
       2, 6},
      {"AllExperts",
       With(Small(2),
            [](LlamaConfig* c) {
              c->experts = {3, 3, 12};
            }),
       2, 6},
      {"MoreExpertsThanTokens",
       With(Small(2),
            [](LlamaConfig* c) {
              c->experts = {16, 1, 12, false};
            }),
       1, 5},
  };
}

struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

Batch RandomBatch(const LlamaConfig& config, int64_t micro_batch, int64_t sequence) {
  at::manual_seed(1);  // Independent of the order of tests.
  Batch batch{at::randint(config.vocab_size, {micro_batch, sequence}, at::kLong),
              at::randint(config.vocab_size, {micro_batch, sequence}, at::kLong)};
  if (sequence > 2) batch.targets.select(1, 1).fill_(kIgnoredTarget);
  return batch;
}

TensorsByUnit Copies(const TensorsByUnit& tensors, at::ScalarType type = at::kFloat) {
  TensorsByUnit copies(tensors.size());
  for (size_t u = 0; u < tensors.size(); ++u) {
    for (const at::Tensor& tensor : tensors[u]) copies[u].push_back(tensor.to(type, false, /*copy=*/true));
  }
  return copies;
}

void ExpectSameBits(const TensorsByUnit& a, const TensorsByUnit& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t u = 0; u < a.size(); ++u) {
    for (size_t p = 0; p < a[u].size(); ++p) EXPECT_TRUE(a[u][p].equal(b[u][p])) << u << " " << p;
  }
}

// For sequences of one token, gradients of queries and keys are pure rounding error: hence `largest`.
void ExpectNear(const UnitChain& got, const TensorsByUnit& expected) {
  double largest = 0;
  for (const auto& unit : expected) {
    for (const at::Tensor& grad : unit) largest = std::max(largest, grad.norm().item<double>());
  }
  for (size_t u = 0; u < expected.size(); ++u) {
    for (size_t p = 0; p < expected[u].size(); ++p) {
      const double error = (got.grads()[u][p] - expected[u][p]).norm().item<double>();
      EXPECT_LE(error, 1e-5 * expected[u][p].norm().item<double>() + 1e-6 * largest)
          << got.facts().units[u].name << " " << got.facts().units[u].params[p].name;
    }
  }
}

enum class Kind { kNative, kAutograd };

// A chain with the same parameters for both kinds.
UnitChain MakeChain(Kind kind, const Case& c, DType compute = DType::kFp32,
                    at::ScalarType grads = at::kFloat) {
  const ModelFacts facts = DescribeModel(c.config, c.micro_batch, c.sequence, compute);
  auto units = kind == Kind::kNative ? MakeNativeLlama(c.config, facts, c.sequence, at::kCPU, compute)
                                     : MakeLlama(c.config, facts, c.sequence, at::kCPU);
  TensorsByUnit params = Copies(TestParams(facts, units, kScale), compute == DType::kFp32   ? at::kFloat
                                                                  : compute == DType::kBf16 ? at::kBFloat16
                                                                                            : at::kHalf);
  return UnitChain(facts, std::move(units), std::move(params), grads);
}

class NativeLlamaTest : public ::testing::TestWithParam<Case> {
 protected:
  NativeLlamaTest() : batch_(RandomBatch(GetParam().config, GetParam().micro_batch, GetParam().sequence)) {}

  at::Tensor Run(UnitChain* chain, ActivationSaving saving, double grad_loss = 1) const {
    return chain->LossAndGradients({batch_.tokens, batch_.targets}, saving, grad_loss);
  }

  const Batch batch_;
};

TEST_P(NativeLlamaTest, LossAndGradientsEqualAutogradUnits) {
  UnitChain native = MakeChain(Kind::kNative, GetParam()), oracle = MakeChain(Kind::kAutograd, GetParam());
  const double loss = Run(&native, ActivationSaving::kAll, 3).item<double>();
  EXPECT_NEAR(loss, Run(&oracle, ActivationSaving::kAll, 3).item<double>(), 1e-5 * loss);
  ExpectNear(native, oracle.grads());
  native.LossAndGradients({batch_.tokens, batch_.targets}, ActivationSaving::kSelective, 3,
                          WeightGrads::kLater);
  ExpectNear(native, oracle.grads());
}

TEST_P(NativeLlamaTest, RecomputationIsBitwiseEqual) {
  UnitChain chain = MakeChain(Kind::kNative, GetParam());
  const at::Tensor loss = Run(&chain, ActivationSaving::kAll);
  const TensorsByUnit all = Copies(chain.grads());
  for (const ActivationSaving saving : {ActivationSaving::kSelective, ActivationSaving::kInput}) {
    EXPECT_TRUE(Run(&chain, saving).equal(loss));
    ExpectSameBits(chain.grads(), all);
  }
  EXPECT_TRUE(chain.Loss({batch_.tokens, batch_.targets}).equal(loss));
}

TEST_P(NativeLlamaTest, Bf16GradientsAreAsExactAsAutogradUnits) {
  // Rounded scores would select other experts, and gradients would not be comparable.
  const ExpertsConfig& experts = GetParam().config.experts;
  if (experts.per_token < experts.count) GTEST_SKIP() << "tokens go to some of many experts";
  UnitChain exact = MakeChain(Kind::kNative, GetParam());
  Run(&exact, ActivationSaving::kAll);
  UnitChain native = MakeChain(Kind::kNative, GetParam(), DType::kBf16),
            oracle = MakeChain(Kind::kAutograd, GetParam(), DType::kBf16);
  Run(&native, ActivationSaving::kSelective);
  Run(&oracle, ActivationSaving::kAll);
  // The mean, since the relative error of a single parameter is dominated by chance.
  const auto error = [&](const UnitChain& chain) {
    double sum = 0, count = 0;
    for (size_t u = 0; u < exact.grads().size(); ++u) {
      for (size_t p = 0; p < exact.grads()[u].size(); ++p, ++count) {
        const at::Tensor& want = exact.grads()[u][p];
        sum += ((chain.grads()[u][p] - want).norm() / (want.norm() + 1e-3)).item<double>();
      }
    }
    return sum / count;
  };
  EXPECT_GT(error(native), 0);
  EXPECT_LT(error(native), 2 * error(oracle) + 0.005);
  EXPECT_LT(error(native), 0.3);
}

INSTANTIATE_TEST_SUITE_P(Experts, NativeLlamaTest, ::testing::ValuesIn(CasesWithExperts()),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(Families, NativeLlamaTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

const Case& Biggest() {
  static const Case c = {"", With(Small(2), [](LlamaConfig* c) { c->qk_norm = c->attention_bias = true; }), 2,
                         16};
  return c;
}

const Case& BiggestWithLatents() {
  static const Case c = {"", With(Small(4), [](LlamaConfig* c) { SetLatent({8, 10, 6, 4, 5}, c); }), 2, 16};
  return c;
}

TEST(NativeLlama, SixteenBitBuffersHoldRoundedGradients) {
  const Batch batch = RandomBatch(Biggest().config, 2, 16);
  UnitChain wide = MakeChain(Kind::kNative, Biggest()),
            narrow = MakeChain(Kind::kNative, Biggest(), DType::kFp32, at::kBFloat16);
  wide.LossAndGradients({batch.tokens, batch.targets}, ActivationSaving::kAll);
  narrow.LossAndGradients({batch.tokens, batch.targets}, ActivationSaving::kAll);
  ExpectSameBits(narrow.grads(), Copies(wide.grads(), at::kBFloat16));
}

TEST(NativeLlama, AppliesLossScaleBeforeRoundingToFp16) {
  const Batch batch = RandomBatch(Biggest().config, 2, 16);
  UnitChain exact = MakeChain(Kind::kNative, Biggest()),
            half = MakeChain(Kind::kNative, Biggest(), DType::kFp16);
  exact.LossAndGradients({batch.tokens, batch.targets}, ActivationSaving::kAll, 1e-6);
  half.LossAndGradients({batch.tokens, batch.targets}, ActivationSaving::kAll, 1);
  TensorsByUnit expected = Copies(exact.grads());
  for (auto& unit : expected) {
    for (at::Tensor& grad : unit) grad.mul_(1e6);
  }
  half.ExpectGradients(expected, 0.02);
}

TEST(NativeLlama, IsDeterministicWithSeveralThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  const Batch batch = RandomBatch(Biggest().config, 2, 16);
  UnitChain chain = MakeChain(Kind::kNative, Biggest(), DType::kBf16);
  chain.LossAndGradients({batch.tokens, batch.targets}, ActivationSaving::kAll);
  const TensorsByUnit first = Copies(chain.grads());
  chain.LossAndGradients({batch.tokens, batch.targets}, ActivationSaving::kAll);
  ExpectSameBits(chain.grads(), first);
  at::set_num_threads(threads);
}

TEST(NativeLlama, InitialValuesEqualAutogradUnits) {
  const ModelFacts facts = DescribeModel(Biggest().config, 2, 16, DType::kFp32);
  const auto native = MakeNativeLlama(Biggest().config, facts, 16, at::kCPU, DType::kFp32);
  const auto oracle = MakeLlama(Biggest().config, facts, 16, at::kCPU);
  for (size_t u = 0; u < native.size(); ++u) {
    for (size_t p = 0; p < facts.units[u].params.size(); ++p) {
      EXPECT_TRUE(native[u]->InitialValue(p, 7, 1, 5).equal(oracle[u]->InitialValue(p, 7, 1, 5)));
    }
  }
}

// ---- A single block: with key heads, and with latents.

std::vector<LlamaConfig> Blocks() { return {Biggest().config, BiggestWithLatents().config}; }

struct OneBlock {
  ModelFacts facts;
  std::unique_ptr<Unit> unit;
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> grads;
  UnitInput input;
  at::Tensor grad;

  OneBlock(const LlamaConfig& config, int64_t micro_batch, int64_t sequence)
      : facts(DescribeModel(config, micro_batch, sequence, DType::kFp32)) {
    auto units = MakeNativeLlama(config, facts, sequence, at::kCPU, DType::kFp32);
    params = TestParams(facts, units, kScale)[1];
    for (const at::Tensor& param : params) grads.push_back(at::full_like(param, 5));
    unit = std::move(units[1]);
    BindSingleRank(unit.get(), params);
    at::manual_seed(1);
    input.hidden = at::randn({micro_batch, sequence, config.hidden_size});
    grad = at::randn({micro_batch, sequence, config.hidden_size});
  }

  at::Tensor Backward(int slot, bool accumulate, const std::vector<at::Tensor>& into) {
    return unit->Backward(slot, grad, {into, accumulate}, WeightGrads::kNow);
  }
};

class NativeBlock : public ::testing::TestWithParam<LlamaConfig> {};
INSTANTIATE_TEST_SUITE_P(Attention, NativeBlock, ::testing::ValuesIn(Blocks()),
                         [](const auto& info) { return info.param.latent ? "Latents" : "KeyHeads"; });

TEST_P(NativeBlock, AccumulateAddsToBuffers) {
  OneBlock block(GetParam(), 2, 16);
  std::vector<at::Tensor> once = block.grads;
  for (at::Tensor& grad : once) grad = at::full_like(grad, 0);
  block.unit->Forward(0, block.input, ActivationSaving::kAll);
  block.Backward(0, /*accumulate=*/false, once);
  block.unit->Forward(0, block.input, ActivationSaving::kAll);
  block.Backward(0, /*accumulate=*/true, block.grads);
  for (size_t p = 0; p < once.size(); ++p) {
    const double scale = once[p].abs().max().item<double>() + 5;
    EXPECT_LT((block.grads[p] - 5 - once[p]).abs().max().item<double>(), 1e-6 * scale) << p;
  }
}

TEST_P(NativeBlock, FreezingLeavesOtherGradientsUnchanged) {
  OneBlock block(GetParam(), 2, 16);
  block.unit->Forward(0, block.input, ActivationSaving::kAll);
  const at::Tensor grad_x = block.Backward(0, /*accumulate=*/false, block.grads);
  for (size_t frozen = 0; frozen < block.grads.size(); ++frozen) {
    std::vector<at::Tensor> into;
    for (const at::Tensor& grad : block.grads) into.push_back(at::full_like(grad, 0));
    into[frozen] = at::Tensor();
    block.unit->Forward(0, block.input, ActivationSaving::kAll);
    EXPECT_TRUE(block.Backward(0, /*accumulate=*/false, into).equal(grad_x));
    for (size_t p = 0; p < into.size(); ++p) {
      if (p != frozen) {
        EXPECT_TRUE(into[p].equal(block.grads[p])) << p;
      }
    }
  }
}

TEST_P(NativeBlock, KeepsSlotsSeparate) {
  OneBlock block(GetParam(), 2, 16);
  const UnitInput other{{}, {}, at::randn_like(block.input.hidden)};
  block.unit->Forward(0, block.input, ActivationSaving::kAll);
  const at::Tensor alone = block.Backward(0, /*accumulate=*/false, block.grads);
  block.unit->Forward(1, other, ActivationSaving::kSelective);
  block.unit->Forward(0, block.input, ActivationSaving::kSelective);
  EXPECT_FALSE(block.Backward(1, /*accumulate=*/false, block.grads).equal(alone));
  EXPECT_TRUE(block.Backward(0, /*accumulate=*/false, block.grads).equal(alone));
}

TEST_P(NativeBlock, DeferredWeightGradientsAreBitwiseEqual) {
  for (const ActivationSaving saving :
       {ActivationSaving::kAll, ActivationSaving::kSelective, ActivationSaving::kInput}) {
    OneBlock block(GetParam(), 2, 16);
    block.unit->Forward(0, block.input, saving);
    const at::Tensor grad_x = block.Backward(0, /*accumulate=*/false, block.grads);
    std::vector<at::Tensor> later;
    for (const at::Tensor& grad : block.grads) later.push_back(at::full_like(grad, 5));
    block.unit->Forward(0, block.input, saving);
    EXPECT_TRUE(block.unit->Backward(0, block.grad, {later}, WeightGrads::kLater).equal(grad_x));
    EXPECT_FALSE(later.back().equal(block.grads.back()));
    // Another micro-batch between the two calls.
    block.unit->Forward(1, block.input, saving);
    block.unit->Backward(1, block.grad, {block.grads}, WeightGrads::kNow);
    block.unit->BackwardWeights(0, {later});
    for (size_t p = 0; p < later.size(); ++p) EXPECT_TRUE(later[p].equal(block.grads[p])) << p;
  }
}

TEST_P(NativeBlock, SavedActivationsCanBeReplaced) {
  for (const ActivationSaving saving :
       {ActivationSaving::kAll, ActivationSaving::kSelective, ActivationSaving::kInput}) {
    OneBlock block(GetParam(), 2, 16);
    block.unit->Forward(0, block.input, saving);
    const at::Tensor grad_x = block.Backward(0, /*accumulate=*/false, block.grads);
    const std::vector<at::Tensor> grads = block.grads;
    for (at::Tensor& grad : block.grads) grad = at::full_like(grad, 5);
    const UnitInput input{{}, {}, block.input.hidden.clone()};
    block.unit->Forward(0, input, saving);
    int visited = 0;
    block.unit->VisitSavedActivations(0, [&](at::Tensor* saved) {
      const at::Tensor copy = saved->clone();
      saved->is_floating_point() ? saved->fill_(std::numeric_limits<float>::quiet_NaN()) : saved->zero_();
      *saved = copy;
      ++visited;
    });
    EXPECT_EQ(visited, saving == ActivationSaving::kInput       ? 1
                       : saving == ActivationSaving::kSelective ? 6
                                                                : 12);
    EXPECT_TRUE(block.Backward(0, /*accumulate=*/false, block.grads).equal(grad_x));
    for (size_t p = 0; p < grads.size(); ++p) EXPECT_TRUE(block.grads[p].equal(grads[p])) << p;
  }
}

// Two documents in one row of the first sequence, compared with each in its own micro-batch.
TEST_P(NativeBlock, DocumentsInOneRowAreIndependent) {
  constexpr int64_t kFirst = 5, kSequence = 16;
  OneBlock block(GetParam(), 2, kSequence), alone(GetParam(), 1, kSequence);
  UnitInput packed = block.input;
  packed.positions = at::arange(kSequence).repeat({2, 1});
  packed.positions[0].narrow(0, kFirst, kSequence - kFirst).sub_(kFirst);
  packed.documents.starts = {0, kFirst, kSequence};
  for (const ActivationSaving saving :
       {ActivationSaving::kAll, ActivationSaving::kSelective, ActivationSaving::kInput}) {
    const at::Tensor out = block.unit->Forward(0, packed, saving).hidden;
    const at::Tensor grad_x = block.Backward(0, /*accumulate=*/false, block.grads);
    // The second document by itself, at the start of the row. The tokens after it do not affect it.
    const at::Tensor own = at::zeros({1, kSequence, block.input.hidden.size(2)}),
                     own_grad = at::zeros_like(own);
    const int64_t count = kSequence - kFirst;
    own.narrow(1, 0, count).copy_(block.input.hidden.narrow(0, 0, 1).narrow(1, kFirst, count));
    own_grad.narrow(1, 0, count).copy_(block.grad.narrow(0, 0, 1).narrow(1, kFirst, count));
    const at::Tensor expected = alone.unit->Forward(0, {{}, {}, own}, saving).hidden.narrow(1, 0, count);
    const at::Tensor expected_grad =
        alone.unit->Backward(0, own_grad, {alone.grads}, WeightGrads::kNow).narrow(1, 0, count);
    const at::Tensor got = out.narrow(0, 0, 1).narrow(1, kFirst, count);
    EXPECT_LT((got - expected).abs().max().item<double>(), 1e-5 * expected.abs().max().item<double>());
    const at::Tensor got_grad = grad_x.narrow(0, 0, 1).narrow(1, kFirst, count);
    EXPECT_LT((got_grad - expected_grad).abs().max().item<double>(),
              1e-5 * expected_grad.abs().max().item<double>());
  }
  const at::Tensor whole = block.unit->Forward(0, block.input, ActivationSaving::kNothing).hidden;
  EXPECT_FALSE(whole[0].equal(block.unit->Forward(0, packed, ActivationSaving::kNothing).hidden[0]));
}

// ---- Memory.

// Sizes whose tensors are whole size classes, so that the allocator's numbers are exact.
enum class Heads { kPlain, kNormed, kOfLatents, kOfOneLatent };

LlamaConfig WholeClasses(Heads heads) {
  LlamaConfig config = Small(2);
  config.vocab_size = 256;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.head_size = 64;
  config.qk_norm = heads == Heads::kNormed;
  if (heads == Heads::kOfLatents) SetLatent({32, 64, 32, 32, 16}, &config);
  if (heads == Heads::kOfOneLatent) SetLatent({96, 0, 32, 32, 64}, &config);
  return config;
}

int64_t Allocated() { return ProcessHostAllocator().Read().allocated_bytes; }

TEST(NativeLlamaMemory, SavedActivationsMatchPlanAndAreFreed) {
  InstallHostCachingAllocator();
  constexpr int64_t kBatch = 2, kSequence = 128;
  for (const bool lora : {false, true}) {
    for (const Heads heads : {Heads::kPlain, Heads::kNormed, Heads::kOfLatents, Heads::kOfOneLatent}) {
      Spec spec;
      const LlamaConfig config = WholeClasses(heads);
      spec.model = config;
      spec.micro_batch = kBatch;
      spec.data.sequence_length = kSequence;
      if (lora) spec.lora = {/*rank=*/64, /*alpha=*/64};
      const ModelFacts facts = DescribeSpec(spec);
      auto units = MakeNativeLlama(config, facts, kSequence, at::kCPU, DType::kFp32);
      const auto params = TestParams(facts, units, kScale);
      const Batch batch = RandomBatch(config, kBatch, kSequence);
      const at::Tensor hidden = at::randn({kBatch, kSequence, config.hidden_size});
      for (size_t u = 0; u + 1 < units.size(); ++u) {  // The last unit saves nothing between calls.
        BindSingleRank(units[u].get(), params[u]);
        std::vector<at::Tensor> grads;
        for (size_t p = 0; p < params[u].size(); ++p)
          grads.push_back(facts.units[u].params[p].trainable ? at::zeros_like(params[u][p]) : at::Tensor());
        const int64_t input_bytes = u == 0 ? batch.tokens.nbytes() : hidden.nbytes();
        const std::pair<ActivationSaving, int64_t> modes[] = {
            {ActivationSaving::kAll, facts.units[u].saved_bytes.none},
            {ActivationSaving::kSelective, facts.units[u].saved_bytes.selective},
            {ActivationSaving::kInput, facts.units[u].saved_bytes.full},
            {ActivationSaving::kNothing, 0}};
        for (const auto& [saving, expected] : modes) {
          if (u != 1 && saving != ActivationSaving::kAll) continue;  // Only blocks recompute.
          const int64_t before = Allocated();
          units[u]->Forward(0, {batch.tokens, batch.targets, hidden}, saving);
          const int64_t inputs = saving == ActivationSaving::kNothing ? 0 : input_bytes;
          EXPECT_EQ(Allocated() - before + inputs, expected)
              << facts.units[u].name << " keep " << static_cast<int>(saving) << " heads "
              << static_cast<int>(heads) << " lora " << lora;
          if (saving == ActivationSaving::kNothing) continue;
          int64_t handed_out = 0;
          units[u]->VisitSavedActivations(
              0, [&](at::Tensor* saved) { handed_out += static_cast<int64_t>(saved->nbytes()); });
          EXPECT_EQ(handed_out, u == 0 ? 0 : expected);  // The tokens belong to the batch.
          units[u]->Backward(0, hidden, {grads}, WeightGrads::kNow);
          EXPECT_EQ(Allocated(), before);
        }
      }
    }
  }
}

TEST(NativeLlamaMemory, HeadHoldsOneChunkOfLogits) {
  InstallHostCachingAllocator();
  LlamaConfig config = Small(2);
  config.hidden_size = 8;
  config.vocab_size = 4096;
  constexpr int64_t kSequence = 4 * kLossChunkTokens + 1;
  const ModelFacts facts = DescribeModel(config, 1, kSequence, DType::kFp32);
  const auto units = MakeNativeLlama(config, facts, kSequence, at::kCPU, DType::kFp32);
  const std::vector<at::Tensor> params = TestParams(facts, units, kScale).back();
  std::vector<at::Tensor> grads = {at::full_like(params[0], 0), at::full_like(params[1], 0)};
  BindSingleRank(units.back().get(), params);
  const Batch batch = RandomBatch(config, 1, kSequence);
  const at::Tensor hidden = at::randn({1, kSequence, config.hidden_size});
  const int64_t before = Allocated();
  ProcessHostAllocator().ResetPeak();
  units.back()->ForwardBackward(0, {batch.tokens, batch.targets, hidden}, at::full({}, 1.0), {grads});
  // Logits, their fp32 probabilities, and as much again for small tensors; all logits in fp32 would take 4.
  const int64_t chunk = kLossChunkTokens * config.vocab_size * 4;
  EXPECT_LE(ProcessHostAllocator().Read().peak_bytes - before, 5 * chunk / 2);
}

TEST(NativeHead, ChunksEqualOneProduct) {
  LlamaConfig config = Small(2);
  config.layers = 0;
  const int64_t sequence = 2 * kLossChunkTokens + 3;
  const Case c = {"", config, 1, sequence};
  UnitChain native = MakeChain(Kind::kNative, c), oracle = MakeChain(Kind::kAutograd, c);
  Batch batch = RandomBatch(config, 1, sequence);
  batch.targets.narrow(1, kLossChunkTokens, kLossChunkTokens).fill_(kIgnoredTarget);  // A whole chunk.
  const double loss =
      native.LossAndGradients({batch.tokens, batch.targets}, ActivationSaving::kAll).item<double>();
  const double expected =
      oracle.LossAndGradients({batch.tokens, batch.targets}, ActivationSaving::kAll).item<double>();
  EXPECT_NEAR(loss, expected, 1e-5 * expected);
  native.ExpectGradients(Copies(oracle.grads()), 1e-5);
}

}  // namespace
}  // namespace fsdpd
