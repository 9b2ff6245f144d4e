// Native units on CUDA compared with the CPU, through each attention kernel. Skipped without a GPU.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/model/native/native_attention.h"
#include "fsdp/model/native/native_llama.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/model/testing/unit_chain.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

struct Case {
  std::string name;
  DType compute;
  int64_t head_size;
  int64_t kv_heads;
  bool everything;  // QK-norm, biases, scaled positions, tied embeddings.
  ExpertsConfig experts = {};
  LatentConfig latent = {};

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

// A subset of the experts per token, all of them, and DeepSeek's routing with a shared expert and sizes that
// are not multiples of a pack.
std::vector<std::pair<std::string, ExpertsConfig>> Experts() {
  ExpertsConfig some;
  some.count = 8;
  some.per_token = 2;
  some.intermediate_size = 64;
  some.normalized = true;
  some.balance_loss = 0.01;
  ExpertsConfig all = some;
  all.count = all.per_token = 4;
  all.normalized = false;
  ExpertsConfig grouped = some;
  grouped.count = 12;
  grouped.sigmoid = true;
  grouped.groups = 3;
  grouped.groups_per_token = 2;
  grouped.shared_intermediate_size = 40;
  grouped.intermediate_size = 37;
  return {{"SomeExperts", some}, {"AllExperts", all}, {"GroupedExperts", grouped}};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DType compute : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    for (const int64_t head_size : {6, 64, 128}) {
      for (const int64_t kv_heads : {1, 4}) {
        for (const bool everything : {false, true}) {
          cases.push_back({std::string(NameOf(compute)) + "Head" + std::to_string(head_size) + "Kv" +
                               std::to_string(kv_heads) + (everything ? "Everything" : ""),
                           compute, head_size, kv_heads, everything});
        }
      }
    }
  }
  for (const DType compute : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    for (const auto& [name, experts] : Experts())
      cases.push_back({std::string(NameOf(compute)) + name, compute, 64, 4, true, experts});
    // Like DeepSeek-V3's heads, whose values are narrower than keys, with queries without a latent.
    cases.push_back(
        {std::string(NameOf(compute)) + "Latents", compute, 0, 0, false, {}, {32, 64, 128, 64, 128}});
    cases.push_back(
        {std::string(NameOf(compute)) + "OneLatent", compute, 0, 0, false, {}, {96, 0, 32, 32, 64, false}});
  }
  return cases;
}

constexpr int64_t kBatch = 2, kSequence = 200;  // Not a multiple of any kernel's tile.

LlamaConfig ConfigOf(const Case& c) {
  LlamaConfig config;
  config.vocab_size = 300;
  config.hidden_size = 96;
  config.intermediate_size = 160;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = c.kv_heads;
  config.head_size = c.head_size;
  config.qk_norm = config.attention_bias = config.tied_embeddings = c.everything;
  config.experts = c.experts;
  if (c.latent) SetLatent(c.latent, &config);
  if (c.everything) config.rope_scaling = {8, 1, 4, 64};
  return config;
}

at::ScalarType TypeOf(DType dtype) {
  return dtype == DType::kFp32 ? at::kFloat : dtype == DType::kBf16 ? at::kBFloat16 : at::kHalf;
}

UnitChain MakeChain(const Case& c, at::Device device, DType compute) {
  const LlamaConfig config = ConfigOf(c);
  const ModelFacts facts = DescribeModel(config, kBatch, kSequence, compute);
  auto units = MakeNativeLlama(config, facts, kSequence, device, compute);
  TensorsByUnit params = TestParams(facts, units, 3);
  for (auto& unit : params) {
    for (at::Tensor& param : unit) {
      // Norm weights of hundreds of elements would reach 10 and more; moves them close to one.
      if (param.dim() == 1) param = param.sub(1).mul(0.05).add(1);
      param = param.to(at::TensorOptions().device(device).dtype(TypeOf(compute)));
    }
  }
  return UnitChain(facts, std::move(units), std::move(params));
}

constexpr int64_t kTokens = kBatch * kSequence;

// Documents as the engine passes them: on CUDA with bounds.
Documents DocumentsOf(const std::vector<int64_t>& starts, at::Device device) {
  Documents documents{starts};
  if (!device.is_cuda()) return documents;
  std::vector<int64_t> bounds = starts;
  bounds.push_back(kTokens);
  documents.bounds = at::tensor(bounds, at::kInt).to(device);
  return documents;
}

at::Tensor PositionsOf(const std::vector<int64_t>& starts) {
  const at::Tensor positions = at::arange(kTokens);
  for (size_t d = 0; d < starts.size(); ++d) {
    const int64_t end = d + 1 < starts.size() ? starts[d + 1] : kTokens;
    positions.narrow(0, starts[d], end - starts[d]).copy_(at::arange(end - starts[d]));
  }
  return positions.view({kBatch, kSequence});
}

// Documents of one token, of one tile, and of one more or less; different in each row.
const std::vector<int64_t> kDocumentStarts = {0, 1, 2, 66, 130, 193, 200, 263, 391};

// Mean relative error over all parameters, on the CPU.
double Error(const UnitChain& got, const UnitChain& want) {
  double sum = 0, count = 0;
  for (size_t u = 0; u < want.grads().size(); ++u) {
    for (size_t p = 0; p < want.grads()[u].size(); ++p, ++count) {
      const at::Tensor a = got.grads()[u][p].cpu(), b = want.grads()[u][p].cpu();
      sum += ((a - b).norm() / (b.norm() + 1e-6)).item<double>();
    }
  }
  return sum / count;
}

class NativeCudaTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
    Draw();
  }

  void Draw() {
    tokens_ = at::randint(300, {kBatch, kSequence}, at::kLong);
    targets_ = at::randint(300, {kBatch, kSequence}, at::kLong);
    targets_.select(1, 3).fill_(kIgnoredTarget);
  }

  double Run(UnitChain* chain, at::Device device, ActivationSaving saving) const {
    UnitInput input = {tokens_.to(device), targets_.to(device)};
    if (!starts_.empty()) {
      input.positions = PositionsOf(starts_).to(device);
      input.documents = DocumentsOf(starts_, device);
    }
    return chain->LossAndGradients(input, saving).item<double>();
  }

  // Averages over random draws: with nearly uniform attention, gradients of queries and keys are so small
  // that the error of a single 16-bit draw varies by a factor of two.
  void ExpectAsExactAsOnTheCpu() {
    const bool rounds = GetParam().compute != DType::kFp32;
    const int draws = rounds ? 12 : 1;
    const double tolerance = rounds ? 1e-2 : 1e-5;
    double of_cpu = 0;
    std::map<ActivationSaving, double> of_cuda;
    for (int draw = 0; draw < draws; ++draw, Draw()) {
      UnitChain exact = MakeChain(GetParam(), at::kCPU, DType::kFp32),
                cpu = MakeChain(GetParam(), at::kCPU, GetParam().compute),
                cuda = MakeChain(GetParam(), at::kCUDA, GetParam().compute);
      const double expected = Run(&exact, at::kCPU, ActivationSaving::kAll);
      Run(&cpu, at::kCPU, ActivationSaving::kAll);
      of_cpu += Error(cpu, exact) / draws;
      for (const ActivationSaving saving :
           {ActivationSaving::kAll, ActivationSaving::kSelective, ActivationSaving::kInput}) {
        EXPECT_NEAR(Run(&cuda, at::kCUDA, saving), expected, tolerance * expected);
        of_cuda[saving] += Error(cuda, exact) / draws;
      }
    }
    for (const auto& [saving, error] : of_cuda)
      EXPECT_LT(error, 1.5 * of_cpu + 1e-4) << "keep " << static_cast<int>(saving);
  }

  at::Tensor tokens_;
  at::Tensor targets_;
  std::vector<int64_t> starts_;  // Of documents; empty: each row is one.
};

TEST_P(NativeCudaTest, LossAndGradientsAreAsExactAsOnCpu) { ExpectAsExactAsOnTheCpu(); }

TEST_P(NativeCudaTest, PackedDocumentsAreAsExactAsOnCpu) {
  UnitChain exact = MakeChain(GetParam(), at::kCPU, DType::kFp32);
  const double whole = Run(&exact, at::kCPU, ActivationSaving::kAll);
  starts_ = kDocumentStarts;
  EXPECT_NE(Run(&exact, at::kCPU, ActivationSaving::kAll), whole);
  ExpectAsExactAsOnTheCpu();
}

INSTANTIATE_TEST_SUITE_P(Models, NativeCudaTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(NativeCuda, ChoosesAttentionKernelByShape) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const auto choice = [](int64_t kv_heads, int64_t head_size, at::ScalarType type) {
    const auto options = at::TensorOptions().device(at::kCUDA).dtype(type);
    const at::Tensor q = at::randn({2, 200, 4, head_size}, options);
    const at::Tensor k = at::randn({2, 200, kv_heads, head_size}, options);
    return ChooseAttentionKernel({q, k, k});
  };
  for (const int64_t kv_heads : {1, 4}) {
    const AttentionKernel fastest = choice(kv_heads, 128, at::kBFloat16);
    EXPECT_TRUE(fastest == AttentionKernel::kCudnn || fastest == AttentionKernel::kFlash);
    RecordProperty("cudnn", fastest == AttentionKernel::kCudnn);
    EXPECT_EQ(choice(kv_heads, 64, at::kFloat), AttentionKernel::kEfficient);
    EXPECT_EQ(choice(kv_heads, 6, at::kFloat), AttentionKernel::kComposed);
    EXPECT_EQ(choice(kv_heads, 6, at::kBFloat16), AttentionKernel::kComposed);
  }
}

// q, k and v packed in the rows of a block's product.
AttentionInput QkvOf(const at::Tensor& rows, int64_t heads, int64_t kv_heads, int64_t head_size) {
  const auto part = [&](int64_t first, int64_t count) {
    return rows.narrow(2, first * head_size, count * head_size).unflatten(2, {count, head_size});
  };
  return {part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads)};
}

struct Attended {
  AttentionKernel kernel;
  std::vector<at::Tensor> all;  // The output, and the gradients of q, k and v, in fp32 on the CPU.
};

Attended AttendTo(const AttentionInput& input, const at::Tensor& grad, const Documents& documents) {
  const AttentionOutput output = AttentionForward(input, documents);
  const AttentionInput grads = AttentionBackward(grad, input, output, documents);
  Attended attended{output.kernel, {}};
  for (const at::Tensor& each : {output.out, grads.q, grads.k, grads.v}) {
    EXPECT_TRUE(each.is_contiguous());
    attended.all.push_back(each.to(at::kFloat).cpu());
  }
  return attended;
}

TEST(NativeCuda, PackedDocumentsEqualSeparateDocuments) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  std::vector<int64_t> ones(kTokens);
  std::iota(ones.begin(), ones.end(), 0);
  const std::vector<std::vector<int64_t>> all_starts = {kDocumentStarts, {0, kSequence}, ones};
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t head_size : {64, 128}) {
      for (const int64_t kv_heads : {1, 4}) {
        const at::Tensor rows = at::randn({kBatch, kSequence, (4 + 2 * kv_heads) * head_size}).to(type);
        const at::Tensor grad = at::randn({kBatch, kSequence, 4, head_size}).to(type);
        const AttentionInput input = QkvOf(rows.cuda(), 4, kv_heads, head_size);
        for (const std::vector<int64_t>& starts : all_starts) {
          const Attended exact =
              AttendTo(QkvOf(rows.to(at::kFloat), 4, kv_heads, head_size), grad.to(at::kFloat), {starts});
          const Attended one_by_one = AttendTo(input, grad.cuda(), {starts});
          const Attended at_once = AttendTo(input, grad.cuda(), DocumentsOf(starts, at::kCUDA));
          EXPECT_NE(one_by_one.kernel, AttentionKernel::kFlashOfDocuments);
          EXPECT_EQ(at_once.kernel, AttentionKernel::kFlashOfDocuments);
          // For one token, the gradients of q and k are zero.
          const double scale = exact.all[3].norm().item<double>();
          for (size_t i = 0; i < exact.all.size(); ++i) {
            const auto error = [&](const Attended& of) {
              return (of.all[i] - exact.all[i]).norm().item<double>() / scale;
            };
            EXPECT_LT(error(at_once), 2 * error(one_by_one) + 1e-3)
                << i << " of " << starts.size() << " documents, head " << head_size << ", kv " << kv_heads;
          }
        }
      }
    }
  }
}

// The bits of a document's result do not depend on other documents' tokens.
TEST(NativeCuda, PackedDocumentsAreIndependent) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const Documents documents = DocumentsOf(kDocumentStarts, at::kCUDA);
  const at::Tensor rows = at::randn({kBatch, kSequence, 8 * 64}).to(at::kBFloat16).cuda();
  const at::Tensor before = AttentionForward(QkvOf(rows, 4, 2, 64), documents).out.clone();
  constexpr int64_t kFirst = 2, kEnd = 66;  // The third document.
  rows[0].narrow(0, kFirst, kEnd - kFirst).mul_(-3);
  const at::Tensor after = AttentionForward(QkvOf(rows, 4, 2, 64), documents).out;
  EXPECT_TRUE(after[1].equal(before[1]));
  EXPECT_TRUE(after[0].narrow(0, 0, kFirst).equal(before[0].narrow(0, 0, kFirst)));
  EXPECT_TRUE(after[0].narrow(0, kEnd, kSequence - kEnd).equal(before[0].narrow(0, kEnd, kSequence - kEnd)));
  EXPECT_FALSE(after[0].narrow(0, kFirst, kEnd - kFirst).equal(before[0].narrow(0, kFirst, kEnd - kFirst)));
}

// Small integers and their sums are exact in every type used here.
TEST(NativeCuda, WeightGradientsAreExactInEveryBufferType) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const at::Tensor grad_out = at::randint(-2, 3, {64, 24}, at::kFloat).cuda(),
                   x = at::randint(-2, 3, {64, 40}, at::kFloat).cuda();
  const at::Tensor expected = at::matmul(grad_out.t(), x);
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType buffer : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor into = at::full({24, 40}, 2, grad_out.options().dtype(buffer));
      WeightGradInto(grad_out.to(compute), x.to(compute), /*accumulate=*/true, into);
      EXPECT_TRUE(into.to(at::kFloat).equal(expected + 2)) << compute << " " << buffer;
      WeightGradInto(grad_out.to(compute), x.to(compute), /*accumulate=*/false, into);
      EXPECT_TRUE(into.to(at::kFloat).equal(expected)) << compute << " " << buffer;
    }
  }
}

TEST(NativeCuda, EmbeddingGradientsAreDeterministic) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const at::Tensor tokens = at::randint(5, {4000}, at::kLong).cuda();
  const at::Tensor grad = at::randn({4000, 48}).cuda().to(at::kBFloat16);
  const at::Tensor first = at::full({9, 48}, 1.0).cuda(), second = first.clone();
  EmbeddingGradInto(grad, tokens, /*accumulate=*/true, first);
  EmbeddingGradInto(grad, tokens, /*accumulate=*/true, second);
  EXPECT_TRUE(first.equal(second));
  const at::Tensor expected = at::full({9, 48}, 1.0);
  EmbeddingGradInto(grad.cpu(), tokens.cpu(), /*accumulate=*/true, expected);
  EXPECT_LT((first.cpu() - expected).abs().max().item<double>(), 1e-3);
}

}  // namespace
}  // namespace fsdpd
