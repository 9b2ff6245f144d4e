// Tests of the rules of env.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

v1::JobSpec With(const std::vector<std::pair<std::string, std::string>>& env) {
  v1::JobSpec job;
  job.set_name("tiny");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(64);
  job.mutable_train()->set_steps(10);
  for (const auto& [name, value] : env) {
    v1::Variable* variable = job.add_env();
    variable->set_name(name);
    variable->set_value(value);
  }
  return job;
}

// The single violation of a job with this variable after a valid one.
Violation FaultOf(const std::string& name, const std::string& value = "1") {
  const Violations found = CheckJob(With({{"NCCL_DEBUG", "INFO"}, {name, value}}));
  EXPECT_EQ(found.size(), 1u) << name;
  return found.empty() ? Violation() : found[0];
}

TEST(EnvRules, AcceptsNcclCudaAndLibTorchVariables) {
  EXPECT_TRUE(CheckJob(With({{"NCCL_DEBUG", "INFO"},
                             {"NCCL_IB_HCA", "mlx5_0,mlx5_1"},
                             {"NCCL_SOCKET_IFNAME", "^lo"},
                             {"CUDA_LAUNCH_BLOCKING", ""},
                             {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128"},
                             {"TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"}}))
                  .empty());
}

TEST(EnvRules, SuggestsSimilarNcclVariable) {
  const Violation violation = FaultOf("NCCL_SOCKET_IFNAM");
  EXPECT_EQ(violation.rule, "env_nccl_unknown");
  EXPECT_EQ(violation.field, "env[1].name");
  EXPECT_EQ(violation.level, ViolationLevel::kError);
  EXPECT_EQ(violation.fix, "write NCCL_SOCKET_IFNAME");
  EXPECT_THAT(FaultOf("NCCL_OF_NOBODY_KNOWS_WHERE").fix, HasSubstr("leave it out"));
}

TEST(EnvRules, WarnsOfUnknownNames) {
  const Violation violation = FaultOf("LD_PRELOAD", "/tmp/x.so");
  EXPECT_EQ(violation.rule, kEnvNeedsPermission);
  EXPECT_EQ(violation.level, ViolationLevel::kWarn);
  EXPECT_EQ(violation.field, "env[1].name");
  EXPECT_THAT(violation.fix, HasSubstr("--allow-env LD_PRELOAD"));
}

TEST(EnvRules, WarnsOfLibraryNames) {
  for (const char* name : {"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
                           "CUDA_INJECTION64_PATH", "CUDA_INJECTION32_PATH", "NVTX_INJECTION64_PATH"}) {
    const Violation violation = FaultOf(name, "/tmp/x.so");
    EXPECT_EQ(violation.rule, kEnvNeedsPermission);
    EXPECT_EQ(violation.field, "env[1].name");
    EXPECT_THAT(violation.reason, HasSubstr("load a library that the job names")) << name;
    EXPECT_THAT(violation.fix, HasSubstr("--allow-env " + std::string(name)));
  }
}

TEST(EnvRules, RejectsInvalidNames) {
  EXPECT_EQ(FaultOf("").rule, "env_name");
  EXPECT_EQ(FaultOf("NCCL_DEBUG=INFO").rule, "env_name");
  EXPECT_THAT(FaultOf("NCCL_DEBUG=INFO").fix, HasSubstr("apart from the name"));
  EXPECT_EQ(FaultOf("MY_X", std::string("a\0b", 3)).rule, "env_value");
  EXPECT_EQ(FaultOf("MY_X", std::string(5000, 'x')).rule, "env_value");
  EXPECT_EQ(FaultOf("MY_X", std::string(5000, 'x')).field, "env[1].value");
}

TEST(EnvRules, RejectsReservedNames) {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "FSDPD_RANK"}) {
    EXPECT_EQ(FaultOf(name).rule, "env_of_the_daemon") << name;
    EXPECT_EQ(FaultOf(name).field, "env[1].name") << name;
  }
}

TEST(EnvRules, RejectsDuplicatesAndTooMany) {
  EXPECT_EQ(FaultOf("NCCL_DEBUG", "WARN").rule, "env_name_once");
  std::vector<std::pair<std::string, std::string>> many;
  for (int i = 0; i < 257; ++i) many.emplace_back("MY_X" + std::to_string(i), "");
  const Violations found = CheckJob(With(many));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rule, "env_variables");
}

}  // namespace
}  // namespace fsdpd
