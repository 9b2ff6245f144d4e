#include "fsdp/checkpoint/names/adapter_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

LoraConfig LoraOf(std::vector<std::string> targets) {
  LoraConfig lora;
  lora.rank = 2;
  lora.targets = std::move(targets);
  return lora;
}

TEST(AdapterNames, AreThoseOfPeft) {
  const std::vector<NamedParam> params = AdapterParamsOf(SmallLlama(), LoraOf({"layer.1.attention.wo"}));
  ASSERT_EQ(params.size(), 2);
  EXPECT_EQ(params[0].ours, "layer.1.attention.wo.lora_A");
  EXPECT_EQ(params[0].theirs, "base_model.model.model.layers.1.self_attn.o_proj.lora_A.weight");
  EXPECT_EQ(params[1].theirs, "base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight");
  EXPECT_EQ(params[0].shape.front(), 2);
  EXPECT_EQ(params[1].shape.back(), 2);
}

TEST(AdapterNames, TargetsAreShortIfEveryModuleOfTheNameHasOne) {
  EXPECT_THAT(TargetModulesOf(SmallLlama(), LoraOf({"*.attention.*"})),
              ElementsAre("k_proj", "o_proj", "q_proj", "v_proj"));
  EXPECT_THAT(TargetModulesOf(SmallLlama(), LoraOf({"*.attention.wq", "layer.0.ffn.w2"})),
              ElementsAre("model.layers.0.mlp.down_proj", "q_proj"));
}

// Experts have modules of the same names.
TEST(AdapterNames, TargetsOfSharedExpertsAreWhole) {
  const std::vector<std::string> targets = TargetModulesOf(SmallDots1(), LoraOf({}));
  EXPECT_THAT(targets, Contains("q_proj"));
  EXPECT_THAT(targets, Not(Contains("down_proj")));
  EXPECT_THAT(targets, Contains("model.layers.0.mlp.down_proj"));
}

}  // namespace
}  // namespace fsdpd
