#include "fsdp/plan/model/lora_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Spec SpecOf(const LlamaConfig& model) {
  Spec spec;
  spec.model = model;
  spec.data.sequence_length = 16;
  spec.lora.rank = 2;
  spec.lora.alpha = 8;
  return spec;
}

std::vector<std::string> AdaptersOf(const UnitFacts& unit) {
  std::vector<std::string> names;
  for (const ParamFacts& param : unit.params) {
    EXPECT_EQ(param.trainable, param.lora != LoraPart::kNone) << param.name;
    if (param.lora == LoraPart::kA) names.push_back(param.name);
  }
  return names;
}

TEST(LoraFacts, AdaptsEveryLinearLayerByDefault) {
  const ModelFacts facts = DescribeSpec(SpecOf(SmallLlama()));
  EXPECT_THAT(AdaptersOf(facts.units.front()), IsEmpty());
  EXPECT_THAT(AdaptersOf(facts.units.back()), IsEmpty());
  EXPECT_THAT(AdaptersOf(facts.units[1]),
              ElementsAre("attention.wq.lora_A", "attention.wk.lora_A", "attention.wv.lora_A",
                          "attention.wo.lora_A", "ffn.w1.lora_A", "ffn.w3.lora_A", "ffn.w2.lora_A"));
  EXPECT_EQ(facts.units[1].lora_scale, 4);
}

TEST(LoraFacts, AdaptsOnlyTargets) {
  Spec spec = SpecOf(SmallLlama());
  spec.lora.targets = {"*.attention.wq", "layer.1.ffn.*", "embedding.*"};
  const ModelFacts facts = DescribeSpec(spec);
  EXPECT_THAT(AdaptersOf(facts.units.front()), IsEmpty());
  EXPECT_THAT(AdaptersOf(facts.units[1]), ElementsAre("attention.wq.lora_A"));
  EXPECT_THAT(AdaptersOf(facts.units[2]),
              ElementsAre("attention.wq.lora_A", "ffn.w1.lora_A", "ffn.w3.lora_A", "ffn.w2.lora_A"));
}

TEST(LoraFacts, LeavesExpertsAndRoutersFrozen) {
  const ModelFacts mixtral = DescribeSpec(SpecOf(SmallMixtral()));
  EXPECT_THAT(AdaptersOf(mixtral.units[1]), ElementsAre("attention.wq.lora_A", "attention.wk.lora_A",
                                                        "attention.wv.lora_A", "attention.wo.lora_A"));
  const ModelFacts dots = DescribeSpec(SpecOf(SmallDots1()));  // Its last layer has a shared expert.
  const std::vector<std::string> last = AdaptersOf(dots.units[dots.units.size() - 2]);
  EXPECT_EQ(std::count(last.begin(), last.end(), "ffn.shared.w2.lora_A"), 1);
  EXPECT_EQ(std::count(last.begin(), last.end(), "ffn.experts.w2.lora_A"), 0);
  for (const ParamFacts& param : dots.units[dots.units.size() - 2].params)
    EXPECT_FALSE(param.is_selection_bias()) << "the router's bias is frozen too";
}

TEST(LoraFacts, ShardsAdaptersWithTheirMatrix) {
  LlamaConfig model = SmallLlama();
  Spec spec = SpecOf(model);
  spec.mesh = Mesh::DataParallel(1, 2).WithTensor(2);
  const ModelFacts facts = DescribeSpec(spec);
  for (const ParamFacts& param : facts.units[1].params) {
    if (param.name == "attention.wq.lora_A" || param.name == "attention.wo.lora_B")
      EXPECT_FALSE(param.partition.is_partitioned()) << param.name;
    if (param.name == "attention.wq.lora_B") EXPECT_EQ(param.partition.dim, 0);
    if (param.name == "attention.wo.lora_A") EXPECT_EQ(param.partition.dim, 1);
  }
}

TEST(LoraFacts, StabilizedScaleDividesByRoot) {
  LoraConfig lora;
  lora.rank = 16;
  lora.alpha = 8;
  EXPECT_EQ(lora.scale(), 0.5);
  lora.rank_stabilized = true;
  EXPECT_EQ(lora.scale(), 2);
}

}  // namespace
}  // namespace fsdpd
