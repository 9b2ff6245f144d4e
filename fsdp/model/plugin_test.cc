#include "fsdp/model/plugin.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/temp_dir.h"
#include "fsdp/model/testing/plain_params.h"
#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kPath[] = "fsdp/model/testing/test_plugin.so";

// The error of loading the test plug-in with one defect.
std::string ErrorOf(const char* wrong, const std::string& args = "4") {
  setenv("FSDPD_TEST_PLUGIN", wrong, 1);
  const std::string error = LoadPlugin(kPath, args).status().ToString();
  unsetenv("FSDPD_TEST_PLUGIN");
  return error;
}

PluginConfig Config(int64_t width) {
  PluginConfig config;
  static_cast<ModelDescription&>(config) = (*LoadPlugin(kPath, std::to_string(width)))->Describe();
  config.path = kPath;
  config.args = std::to_string(width);
  return config;
}

TEST(Plugin, DescribesModel) {
  const auto json = DescribePlugin(kPath, "4");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_THAT(*json, AllOf(HasSubstr(R"("vocab_size": "8")"), HasSubstr(R"("name": "embedding")"),
                           HasSubstr(R"("args": "4")"), HasSubstr(R"("saved_values": "12")")));
}

// Binds, runs and differentiates units of the plug-in on tensors of this binary.
TEST(Plugin, UnitsComputeGradients) {
  const PluginConfig config = Config(4);
  const auto units = MakePluginUnits(config, DescribeModel(config, 1, 3, DType::kFp32), at::kCPU);
  ASSERT_TRUE(units.ok()) << units.status();
  Unit* head = (*units)[1].get();
  BindSingleRank(head, {at::zeros({8, 4})});
  UnitInput input;
  input.hidden = at::ones({1, 3, 4});
  input.targets = at::ones({1, 3}, at::kLong);
  const std::vector<at::Tensor> grads = {at::zeros({8, 4})};
  const Unit::LossAndGrad result = head->ForwardBackward(0, input, at::ones({}), {grads});
  EXPECT_NEAR(result.loss.item<double>(), 3 * std::log(8), 1e-5);
  EXPECT_EQ(result.grad_hidden.abs().max().item<double>(), 0);
  EXPECT_NEAR(grads[0][0][0].item<double>(), 3.0 / 8, 1e-6);
  EXPECT_NEAR(grads[0][1][0].item<double>(), 3.0 / 8 - 3, 1e-6);
}

TEST(Plugin, RejectsUnloadableFiles) {
  TempDir dir;
  const absl::Status missing = LoadPlugin(dir.File("no.so"), "").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.ToString(), HasSubstr(dir.File("no.so")));
  std::ofstream(dir.File("text.so")) << "not a library";
  EXPECT_THAT(LoadPlugin(dir.File("text.so"), "").status().ToString(), HasSubstr(dir.File("text.so")));
  EXPECT_THAT(LoadPlugin("libm.so.6", "").status().ToString(), HasSubstr("exports no fsdpd_plugin()"));
}

TEST(Plugin, RejectsOtherVersions) {
  EXPECT_THAT(ErrorOf("abi"), HasSubstr("interface does not match (got 7, want 2)"));
  EXPECT_THAT(ErrorOf("version"), HasSubstr("fsdpd version does not match (got 0.0.9, want "));
  EXPECT_THAT(ErrorOf("torch"), HasSubstr("LibTorch version does not match (got 1.13.0, want 2."));
}

TEST(Plugin, ReturnsFactoryExceptions) {
  EXPECT_THAT(ErrorOf("", "many"), AllOf(HasSubstr(kPath), HasSubstr("args: invalid width (got 'many')")));
  EXPECT_THAT(ErrorOf("null"), HasSubstr("factory returned null"));
  const PluginConfig config = Config(4);
  setenv("FSDPD_TEST_PLUGIN", "units", 1);
  const auto units = MakePluginUnits(config, DescribeModel(config, 1, 3, DType::kFp32), at::kCPU);
  unsetenv("FSDPD_TEST_PLUGIN");
  EXPECT_THAT(units.status().ToString(), AllOf(HasSubstr(kPath), HasSubstr("mat1 and mat2")));
}

TEST(Plugin, NamesFirstDifferenceToSpec) {
  PluginConfig config = Config(4);
  config.args = "6";
  const auto units = MakePluginUnits(config, DescribeModel(config, 1, 3, DType::kFp32), at::kCPU);
  EXPECT_EQ(units.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(units.status().ToString(), HasSubstr("units[0].params[0].shape[1]: 4 -> 6"));
}

}  // namespace
}  // namespace fsdpd
