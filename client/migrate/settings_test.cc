#include "client/migrate/settings.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

Settings Read(const std::string& text) {
  Settings settings;
  const LocatedViolations violations = ReadSettings(text, "in", &settings);
  EXPECT_TRUE(violations.empty()) << Render(violations.front());
  return settings;
}

TEST(Settings, ReadsArgumentsAndYaml) {
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

// Regression: the last value silently won.
TEST(Settings, RejectsDuplicateKey) {
  Settings settings;
  const LocatedViolations violations = ReadSettings(
      "model: {num_layers: 2}\noptimizer:\n  lr: 1e-3\n  lr: 3e-4\nmodel: {}\n", "in", &settings);
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(Render(violations[0]),
            "in:4:3: error: optimizer.lr is written twice; keep one [duplicate_field]");
  EXPECT_EQ(Render(violations[1]), "in:5:1: error: model is written twice; keep one [duplicate_field]");
}

TEST(Settings, ReadsNegatedFlags) {
  Settings settings = Read("--no-gradient-accumulation-fusion --untie-embeddings-and-output-weights --a");
  EXPECT_FALSE(settings.Flag("gradient_accumulation_fusion", true));
  EXPECT_FALSE(settings.Flag("share_embeddings_and_output_weights", true));
  EXPECT_TRUE(settings.Flag("a"));
  EXPECT_TRUE(settings.Flag("absent", true));
}

TEST(Settings, ReadsNegativeNumbersAndLastOfRepeatedFlags) {
  Settings settings = Read("--seed 1 --seed -2");
  EXPECT_EQ(settings.Integer("seed"), -2);
}

TEST(Settings, ReadsEnvironmentOfCommand) {
  const Settings settings = Read("export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun x.py --bf16");
  const Setting* variable = settings.FindVariable("CUDA_DEVICE_MAX_CONNECTIONS");
  ASSERT_NE(variable, nullptr);
  EXPECT_EQ(variable->values, std::vector<std::string>{"1"});
  EXPECT_EQ(variable->place.column, 8);
  EXPECT_EQ(settings.FindVariable("HOME"), nullptr);
}

TEST(Settings, ReportsUnusedSettings) {
  Settings settings = Read("--bf16 --log-interval 10");
  EXPECT_TRUE(settings.Flag("bf16"));
  ASSERT_EQ(settings.unused().size(), 1u);
  EXPECT_EQ(settings.unused()[0]->written, "--log-interval");
}

TEST(Settings, PlacesInvalidNumbers) {
  Settings settings = Read("--bf16\n--seed many --train-iters 1.5");
  EXPECT_FALSE(settings.Integer("seed").has_value());
  EXPECT_FALSE(settings.Integer("train_iters").has_value());
  ASSERT_EQ(settings.value_violations().size(), 2u);
  EXPECT_EQ(settings.value_violations()[0].violation.rule, "not_a_number");
  EXPECT_EQ(settings.value_violations()[0].place.line, 2);
  EXPECT_EQ(settings.value_violations()[1].violation.rule, "not_a_whole_number");
}

// Regression: a quoted command was one word, and none of its settings was read.
TEST(Settings, ReadsQuotedCommandsAndPrintedLists) {
  Settings quoted =
      Read("srun --nodes=4 --ntasks-per-node=8 bash -c \"python pretrain_gpt.py --lr 1e-3 --bf16\"");
  EXPECT_EQ(quoted.Integer("nnodes"), 4);
  EXPECT_EQ(quoted.Integer("nproc_per_node"), 8);
  EXPECT_EQ(quoted.Real("lr"), 1e-3);
  Settings printed = Read("['--lr', '1e-3', '--data-path', '/a', '/b']");
  EXPECT_EQ(printed.Real("lr"), 1e-3);
  EXPECT_EQ(printed.Find("data_path")->values, (std::vector<std::string>{"/a", "/b"}));
  Settings array = Read("ARGS=(--lr 1e-3 --seed 2)\ntorchrun pretrain_gpt.py");
  EXPECT_EQ(array.Integer("seed"), 2);
}

TEST(Settings, ReportsMissingValue) {
  Settings settings = Read("--lr --min-lr 1e-5");
  EXPECT_FALSE(settings.Real("lr").has_value());
  EXPECT_FALSE(settings.Real("lr").has_value());
  ASSERT_EQ(settings.value_violations().size(), 1u) << "once, however often it is read";
  EXPECT_EQ(settings.value_violations()[0].violation.rule, "no_value");
  EXPECT_EQ(settings.value_violations()[0].violation.field, "--lr");
}

// Regression: the script was read as a value of the flag before it.
TEST(Settings, FindsScript) {
  Settings settings = Read("torchrun --standalone --nproc_per_node 8 /opt/m/pretrain_gpt.py --bf16");
  ASSERT_NE(settings.script(), nullptr);
  EXPECT_EQ(settings.script()->written, "/opt/m/pretrain_gpt.py");
  EXPECT_EQ(settings.Find("nproc_per_node")->values, std::vector<std::string>{"8"});
}

// Regression: Megatron Bridge writes dtypes and functions as maps whose keys were all ignored, so the dtype
// was dropped.
TEST(Settings, ReadsPythonObjectsOfBridge) {
  Settings settings = Read(R"(
ddp: {megatron_fsdp_main_grads_dtype: {_call_: false, _target_: torch.float32}}
model:
  attention_backend: {_args_: [5], _call_: true, _name_: auto, _target_: megatron.core.AttnBackend}
  init_method: {_args_: [], _partial_: true, _target_: torch.nn.init.normal_, mean: 0.0, std: 0.02}
  cuda_graph_modules: []
logger: {mlflow_tags: {team: a}}
env_vars: {NCCL_DEBUG: INFO}
)");
  EXPECT_EQ(settings.Text("megatron_fsdp_main_grads_dtype"), "torch.float32");
  EXPECT_EQ(settings.Text("attention_backend"), "auto");
  EXPECT_EQ(settings.Text("init_method"), "torch.nn.init.normal_");
  EXPECT_EQ(settings.Text("cuda_graph_modules"), "");
  EXPECT_EQ(settings.Find("std"), nullptr);
  EXPECT_EQ(settings.Find("mlflow_tags")->written, "logger.mlflow_tags");
  ASSERT_NE(settings.FindVariable("NCCL_DEBUG"), nullptr);
}

// Regression: the data of a run was listed as without effect.
TEST(Settings, ConvertsBlendToDataPath) {
  Settings one = Read("dataset: {blend: [[/d/a, /d/b], [0.3, 0.7]]}");
  EXPECT_EQ(one.Find("data_path")->values, (std::vector<std::string>{"0.3", "/d/a", "0.7", "/d/b"}));
  Settings split = Read("dataset:\n  blend_per_split:\n  - [[/d/t], null]\n  - [[/d/v], [1.0]]\n  - null\n");
  EXPECT_EQ(split.Find("train_data_path")->values, std::vector<std::string>{"/d/t"});
  EXPECT_EQ(split.Find("valid_data_path")->values, (std::vector<std::string>{"1.0", "/d/v"}));
  EXPECT_EQ(split.Find("test_data_path"), nullptr);
}

// Regression: of a flag in several sections, only the last one was read.
TEST(Settings, AnyFlagReadsAllSections) {
  Settings settings = Read("ddp: {check_for_nan_in_grad: true}\nmodel: {check_for_nan_in_grad: false}\n");
  EXPECT_TRUE(settings.AnyFlag("check_for_nan_in_grad"));
  EXPECT_FALSE(settings.AnyFlag("fp16"));
}

TEST(Settings, RejectsInvalidBoolean) {
  Settings settings = Read("model: {qk_layernorm: flase, add_bias_linear: False, swiglu: 1}\n");
  EXPECT_FALSE(settings.Flag("add_bias_linear", true));
  EXPECT_TRUE(settings.Flag("swiglu"));
  EXPECT_TRUE(settings.value_violations().empty());
  const std::string name = settings.Find("qk_layernorm") != nullptr ? "qk_layernorm" : "qk_norm";
  EXPECT_FALSE(settings.Flag(name));
  ASSERT_EQ(settings.value_violations().size(), 1u);
  EXPECT_EQ(settings.value_violations()[0].violation.rule, "not_true_or_false");
}

TEST(Settings, MixedPrecisionOverridesOtherSections) {
  Settings settings = Read(
      "model: {bf16: false, fp8: hybrid}\nmixed_precision: {bf16: true, fp8: null}\n"
      "ddp: {bf16: false, grad_reduce_in_fp32: true}\n");
  EXPECT_TRUE(settings.Flag("bf16"));
  EXPECT_EQ(settings.Find("fp8"), nullptr);
  EXPECT_TRUE(settings.Flag("grad_reduce_in_fp32"));
}

TEST(Settings, RejectsUnknownFormat) {
  for (const std::string text : {"", "hello", "- a\n- b", "a: [", "--lr '1"}) {
    Settings settings;
    EXPECT_EQ(ReadSettings(text, "in", &settings).size(), 1u) << text;
  }
}

TEST(Settings, ReadsOtherSettingsNextToShellVariable) {
  Settings settings = Read("--lr $LR --bf16 $MORE --seed 7 x${A[@]} --swiglu ${B[@]}");
  EXPECT_EQ(settings.value_violations().size(), 4u);
  EXPECT_EQ(settings.value_violations()[0].violation.field, "--lr");
  EXPECT_NE(settings.Find("lr"), nullptr);
  EXPECT_EQ(settings.Real("lr"), std::nullopt);
  EXPECT_EQ(settings.Integer("seed"), 7);
  EXPECT_TRUE(settings.Flag("swiglu")) << "the next word is not its value";
  EXPECT_TRUE(settings.incomplete());
  EXPECT_EQ(settings.value_violations().size(), 4u) << "each is reported once";
  EXPECT_FALSE(Read("--lr $LR").incomplete());
  EXPECT_TRUE(Read("$ARGS --lr 1").incomplete());
}

// Regression: the command stayed one word, and none of its settings was read.
TEST(Settings, ReportsVariableInQuotedCommandOnce) {
  for (const char* quote : {"\"", "'"}) {
    Settings settings = Read(std::string("srun bash -c ") + quote + "x.py --lr $LR --seed 7" + quote);
    EXPECT_EQ(settings.value_violations().size(), 1u) << quote;
    EXPECT_EQ(settings.Integer("seed"), 7) << quote;
    EXPECT_EQ(settings.Real("lr"), std::nullopt) << quote;
  }
}

}  // namespace
}  // namespace fsdpd
