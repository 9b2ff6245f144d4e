#include "client/migrate/settings.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

Settings Read(const std::string& text) {
  Settings settings;
  const SpecFaults faults = ReadSettings(text, "in", &settings);
  EXPECT_TRUE(faults.empty()) << Render(faults.front());
  return settings;
}

TEST(Settings, ReadArgumentsAndYamlAlike) {
  Settings arguments =
      Read("torchrun pretrain.py --use-nccl-ub --num-layers 32 --lr=3e-4 --data-path 0.5 a 0.5 b");
  Settings yaml = Read(R"(
model: {num_layers: 32, _target_: x.Y}
ddp: {nccl_ub: true}
optimizer: {lr: 3e-4}
dataset: {data_path: [0.5, a, 0.5, b], split: null}
)");
  for (Settings* settings : {&arguments, &yaml}) {
    EXPECT_TRUE(settings->Flag("nccl_ub"));
    EXPECT_EQ(settings->Integer("num_layers"), 32);
    EXPECT_EQ(settings->Real("lr"), 3e-4);
    EXPECT_EQ(settings->Find("data_path")->values, (std::vector<std::string>{"0.5", "a", "0.5", "b"}));
    EXPECT_EQ(settings->Find("split"), nullptr);
    EXPECT_TRUE(settings->unused().empty());
  }
  EXPECT_EQ(yaml.Find("nccl_ub")->written, "ddp.nccl_ub");
  EXPECT_EQ(arguments.Find("nccl_ub")->written, "--use-nccl-ub");
}

TEST(Settings, KnowFlagsThatSayNo) {
  Settings settings = Read("--no-gradient-accumulation-fusion --untie-embeddings-and-output-weights --a");
  EXPECT_FALSE(settings.Flag("gradient_accumulation_fusion", true));
  EXPECT_FALSE(settings.Flag("share_embeddings_and_output_weights", true));
  EXPECT_TRUE(settings.Flag("a"));
  EXPECT_TRUE(settings.Flag("absent", true));
}

TEST(Settings, TakeNegativeNumbersAndTheLastOfTwo) {
  Settings settings = Read("--seed 1 --seed -2");
  EXPECT_EQ(settings.Integer("seed"), -2);
}

TEST(Settings, KeepTheEnvironmentOfTheCommand) {
  const Settings settings = Read("export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun x.py --bf16");
  const Setting* variable = settings.FindVariable("CUDA_DEVICE_MAX_CONNECTIONS");
  ASSERT_NE(variable, nullptr);
  EXPECT_EQ(variable->values, std::vector<std::string>{"1"});
  EXPECT_EQ(variable->place.column, 8);
  EXPECT_EQ(settings.FindVariable("HOME"), nullptr);
}

TEST(Settings, TellWhatNobodyAskedFor) {
  Settings settings = Read("--bf16 --log-interval 10");
  EXPECT_TRUE(settings.Flag("bf16"));
  ASSERT_EQ(settings.unused().size(), 1u);
  EXPECT_EQ(settings.unused()[0]->written, "--log-interval");
}

TEST(Settings, ValuesThatAreNoNumbersAreFaultsAtTheirPlace) {
  Settings settings = Read("--bf16\n--seed many --train-iters 1.5");
  EXPECT_FALSE(settings.Integer("seed").has_value());
  EXPECT_FALSE(settings.Integer("train_iters").has_value());
  ASSERT_EQ(settings.number_faults().size(), 2u);
  EXPECT_EQ(settings.number_faults()[0].violation.rule, "not_a_number");
  EXPECT_EQ(settings.number_faults()[0].place.line, 2);
  EXPECT_EQ(settings.number_faults()[1].violation.rule, "not_a_whole_number");
}

TEST(Settings, TextOfNeitherFormIsRefused) {
  for (const std::string text : {"", "hello", "- a\n- b", "a: [", "--lr $LR"}) {
    Settings settings;
    EXPECT_EQ(ReadSettings(text, "in", &settings).size(), 1u) << text;
  }
}

}  // namespace
}  // namespace fsdpd
