#include "fsdp/plan/model/described_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

constexpr int64_t kTokens = 2 * 32, kHiddenBytes = kTokens * 16 * 4;

PackageConfig ConfigOf(const v1::Package& package) {
  v1::Model model;
  *model.mutable_package() = package;
  return std::get<PackageConfig>(ToModelConfig(model));
}

std::vector<std::string> FullNames(const ModelFacts& facts) {
  std::vector<std::string> names;
  for (const UnitFacts& unit : facts.units) {
    for (const ParamFacts& param : unit.params) names.push_back(FullName(unit, param));
  }
  return names;
}

TEST(DescribePackage, NamesParametersAsPyTorchDoes) {
  v1::Package package = SmallPackage();
  v1::Package::Param* root = package.mutable_graphs(2)->add_params();  // A parameter of the model itself.
  root->set_name("scale");
  root->add_shape(1);
  const ModelFacts facts = DescribePackage(ConfigOf(package), DType::kFp32);
  EXPECT_EQ(FullNames(facts),
            (std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.mlp.weight",
                                      "model.layers.0.norm.weight", "model.layers.1.mlp.weight",
                                      "model.layers.1.norm.weight", "model.norm.weight", "lm_head.weight",
                                      "scale"}));
  EXPECT_EQ(facts.units[1].params[0].owner, std::nullopt);
  EXPECT_EQ(facts.units[3].params[0].owner, "model.norm");
  EXPECT_EQ(facts.units[3].params[0].name, "weight");
  EXPECT_EQ(facts.units[3].params[2].owner, "");
}

TEST(DescribePackage, MatchesPatternsByFullName) {
  Spec spec;
  spec.model = ConfigOf(SmallPackage());
  spec.frozen = {"model.embed_tokens.*"};
  spec.optimizer.groups = {{{"lm_head.weight"}, 0.5, 2}};
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_FALSE(facts.units[0].params[0].trainable);
  EXPECT_TRUE(facts.units[1].params[0].trainable);
  EXPECT_EQ(facts.units[3].params[0].lr_scale, 1);
  EXPECT_EQ(facts.units[3].params[1].lr_scale, 2);
  EXPECT_EQ(facts.units[3].params[1].weight_decay, 0.5);
}

TEST(DescribePackage, FreezesWhatTheModelFroze) {
  v1::Package package = SmallPackage();
  package.mutable_graphs(1)->mutable_params(1)->set_frozen(true);
  Spec spec;
  spec.model = ConfigOf(package);
  EXPECT_FALSE(DescribeSpec(spec).units[2].params[1].trainable);
}

TEST(DescribePackage, TakesNumbersOfTheMicroBatch) {
  const ModelFacts facts = DescribePackage(ConfigOf(SmallPackage()), DType::kFp32);
  const UnitFacts& layer = facts.units[1];
  EXPECT_EQ(layer.kind, UnitKind::kBlock);
  EXPECT_EQ(layer.saved_bytes.none, 3 * kHiddenBytes);
  EXPECT_EQ(layer.saved_bytes.selective, 3 * kHiddenBytes) << "the package has no such variant";
  EXPECT_EQ(layer.saved_bytes.full, kHiddenBytes);
  // Backward of `none`: the gradients of output and input, and those of the parameters. Backward of `full`
  // needs 10000 bytes more, of which the planner counts two saved hidden states.
  const int64_t gradients = 2 * kHiddenBytes + (16 * 16 + 16) * 4;
  EXPECT_EQ(layer.workspace_bytes, gradients + std::max<int64_t>(1000, 11000 - 2 * kHiddenBytes));
  EXPECT_EQ(layer.output_bytes, kHiddenBytes);
  EXPECT_EQ(layer.forward_flops, 32768);
  EXPECT_TRUE(layer.backward_reads);
  EXPECT_FALSE(facts.units[0].backward_reads);
  EXPECT_EQ(facts.units[0].kind, UnitKind::kEmbedding);
  EXPECT_EQ(facts.units[0].saved_bytes.none, kTokens * 8) << "token ids";
}

TEST(DescribePackage, AddsLossToLastUnit) {
  const ModelFacts facts = DescribePackage(ConfigOf(SmallPackage()), DType::kFp32);
  const UnitFacts& head = facts.units[3];
  EXPECT_EQ(head.kind, UnitKind::kHead);
  EXPECT_EQ(head.saved_bytes.none, 2 * kHiddenBytes + kTokens * 8);
  EXPECT_EQ(head.forward_flops, 2.0 * kTokens * 96 * 16);
  EXPECT_EQ(head.workspace_bytes, kHiddenBytes + kTokens * 96 * 8) << "logits, and their gradients on CPU";
}

TEST(DescribePackage, KeepsLogitsInComputeTypeOnGpu) {
  v1::Package package = SmallPackage();
  package.set_device(v1::DEVICE_CUDA);
  package.set_compute(v1::DTYPE_BF16);
  const auto workspace = [&] {
    return DescribePackage(ConfigOf(package), DType::kFp32).units[3].workspace_bytes;
  };
  EXPECT_EQ(workspace(), kHiddenBytes / 2 + kTokens * 96 * 2);
  package.mutable_graphs(2)->mutable_head()->set_soft_cap(30);
  EXPECT_EQ(workspace(), kHiddenBytes / 2 + kTokens * 96 * 4) << "and the slope of the soft cap";
}

// A product writes its result in the type of its operands; on CUDA also in fp32.
TEST(DescribePackage, PlansTheWeightGradientThatIsConverted) {
  v1::Package package = SmallPackage();
  const auto workspace = [&](v1::Device device, v1::DType compute, DType grads) {
    package.set_device(device);
    package.set_compute(compute);
    return DescribePackage(ConfigOf(package), grads).units[3].workspace_bytes;
  };
  const auto adds = [&](v1::Device device, v1::DType compute, DType same, DType grads) {
    return workspace(device, compute, grads) - workspace(device, compute, same);
  };
  EXPECT_EQ(adds(v1::DEVICE_CUDA, v1::DTYPE_BF16, DType::kBf16, DType::kFp32), 0);
  EXPECT_EQ(adds(v1::DEVICE_CUDA, v1::DTYPE_FP16, DType::kFp16, DType::kBf16), 96 * 16 * 2);
  EXPECT_EQ(adds(v1::DEVICE_CUDA, v1::DTYPE_FP32, DType::kFp32, DType::kBf16), 96 * 16 * 4);
  EXPECT_EQ(adds(v1::DEVICE_CPU, v1::DTYPE_BF16, DType::kBf16, DType::kFp32), 96 * 16 * 2);
}

TEST(DescribePackage, CountsPassesOverLogits) {
  v1::Package package = SmallPackage();
  const auto head = [&] { return DescribePackage(ConfigOf(package), DType::kFp32).units[3]; };
  const int64_t logits = kTokens * 96 * 4;
  EXPECT_EQ(head().forward_bytes, logits);
  EXPECT_EQ(head().backward_bytes, 3 * logits);
  package.mutable_graphs(2)->mutable_head()->set_logit_scale(0.5);
  EXPECT_EQ(head().forward_bytes, 3 * logits);
  package.mutable_graphs(2)->mutable_head()->set_soft_cap(30);
  EXPECT_EQ(head().forward_bytes, 9 * logits);
  EXPECT_EQ(head().backward_bytes, 16 * logits);
  EXPECT_EQ(head().copied_grads, std::vector<int>{0}) << "the norm's; products write those of the projection";
}

TEST(DescribePackage, CountsMeasuredTimeAsFlops) {
  v1::Package package = SmallPackage();
  package.set_matmul_flops(1000);
  for (v1::Package::Graph& graph : *package.mutable_graphs()) {
    for (v1::Package::Variant& variant : *graph.mutable_variants()) {
      variant.set_forward_seconds(variant.recompute() == v1::RECOMPUTE_FULL ? 2 : 3);
      variant.set_backward_seconds(variant.recompute() == v1::RECOMPUTE_FULL ? 9 : 7);
    }
  }
  const ModelFacts facts = DescribePackage(ConfigOf(package), DType::kFp32);
  const UnitFacts& layer = facts.units[1];
  const auto measured = [](const UnitFacts& unit, Recompute recompute) {
    const MeasuredWork& work = unit.measured.value()[static_cast<size_t>(recompute)];
    return std::pair(work.forward, work.backward);
  };
  EXPECT_EQ(measured(layer, Recompute::kNone), std::pair(3000.0, 7000.0));
  EXPECT_EQ(measured(layer, Recompute::kSelective), std::pair(3000.0, 7000.0)) << "no such variant";
  EXPECT_EQ(measured(layer, Recompute::kFull), std::pair(2000.0, 9000.0));
  EXPECT_EQ(layer.forward_flops, 32768) << "MFU counts the FLOPs of the model";
  EXPECT_EQ(layer.forward_bytes, 0);
  EXPECT_EQ(layer.backward_bytes, 0);
  EXPECT_EQ(layer.copied_grads, (std::vector<int>{0, 1}));
  EXPECT_EQ(layer.engine_flops, 0);
  EXPECT_EQ(measured(facts.units[3], Recompute::kNone), std::pair(3000.0, 7000.0));
  EXPECT_EQ(facts.units[3].engine_flops, 2.0 * kTokens * 96 * 16) << "the output projection";
}

TEST(DescribePackage, TiesHeadToEmbedding) {
  v1::Package package = SmallPackage();
  package.mutable_units(3)->set_tied_to("model.embed_tokens");
  package.mutable_graphs(2)->mutable_params()->DeleteSubrange(1, 1);
  const ModelFacts facts = DescribePackage(ConfigOf(package), DType::kFp32);
  EXPECT_EQ(facts.units[3].borrows, 0);
  EXPECT_EQ(facts.units[3].forward_flops, 2.0 * kTokens * 96 * 16);
}

TEST(PackageGraph, ChoosesNextCheaperVariant) {
  PackageGraph graph;
  const auto chosen = [&](Recompute recompute) {
    return graph.variants[graph.VariantFor(recompute)].recompute;
  };
  graph.variants = {{Recompute::kFull}, {Recompute::kNone}};
  EXPECT_EQ(chosen(Recompute::kNone), Recompute::kNone);
  EXPECT_EQ(chosen(Recompute::kSelective), Recompute::kNone);
  EXPECT_EQ(chosen(Recompute::kFull), Recompute::kFull);
  graph.variants = {{Recompute::kNone}, {Recompute::kSelective}};
  EXPECT_EQ(chosen(Recompute::kFull), Recompute::kSelective);
}

}  // namespace
}  // namespace fsdpd
