#include "base/spec_text/rank_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(RankEnv, AcceptsHarmlessAndUnrelatedNames) {
  for (const char* name : {"NCCL_DEBUG", "NCCL_IB_HCA", "CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF",
                           "TORCH_NCCL_TRACE_BUFFER_SIZE", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX",
                           "MY_APP_MODE", "XNCCL_DEBUG", "NCCL", "HF_HOME", ""})
    EXPECT_EQ(WhyNeedsAllowEnv(name), "") << name;
}

TEST(RankEnv, ChecksPrefixedNamesNotKnownToBeHarmless) {
  for (const char* name :
       {"CUDA_DEVICE_ORDER", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "NCCL_NEW_IN_SOME_RELEASE",
        "NCCL_TOPO_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "PYTORCH_X", "LD_BIND_NOW", "GLIBC_TUNABLES",
        "MALLOC_CONF", "PYTHONPATH", "PYTHONSTARTUP", "NVTX_X", "OMP_TOOL"})
    EXPECT_THAT(WhyNeedsAllowEnv(name), HasSubstr("not known to be harmless")) << name;
}

// Regression: their prefix was accepted, and they named files outside of --path-root.
TEST(RankEnv, ChecksNamesThatWriteFilesWithoutPrefix) {
  for (const char* name :
       {"CUDA_CACHE_PATH", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "CUDA_LOG_FILE", "CUDA_COREDUMP_PIPE", "MALLOC_TRACE", "CUBLASLT_LOG_FILE"})
    EXPECT_THAT(WhyNeedsAllowEnv(name), HasSubstr("write a file")) << name;
}

TEST(RankEnv, AllowsNamesByPattern) {
  const std::set<std::string> patterns = {"NCCL_NET_PLUGIN", "CUDA_*_PATH", "OMP*"};
  for (const char* name : {"NCCL_NET_PLUGIN", "CUDA_CACHE_PATH", "CUDA_A_PATH_PATH", "OMP", "OMP_TOOL"})
    EXPECT_TRUE(AllowsEnv(patterns, name)) << name;
  for (const char* name : {"NCCL_NET_PLUGINS", "CUDA_PATH", "CUDA_CACHE_PATHS", "XOMP", ""})
    EXPECT_FALSE(AllowsEnv(patterns, name)) << name;
  EXPECT_FALSE(AllowsEnv({}, "NCCL_NET_PLUGIN"));
  EXPECT_TRUE(AllowsEnv({"*"}, "LD_PRELOAD"));
  EXPECT_EQ(WhyNoEnvPattern("NCCL_IB_*"), "");
  EXPECT_NE(WhyNoEnvPattern("NCCL-*"), "");
  EXPECT_NE(WhyNoEnvPattern(""), "");
}

TEST(RankEnv, ChecksNamesThatLoadLibraries) {
  for (const char* name :
       {"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_CONF_FILE",
        "CUDA_INJECTION64_PATH", "CUDA_INJECTION32_PATH", "NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH",
        "LD_PRELOAD", "OMP_TOOL_LIBRARIES", "GCONV_PATH", "OPENSSL_CONF"})
    EXPECT_THAT(WhyNeedsAllowEnv(name), HasSubstr("load a library")) << name;
  EXPECT_EQ(WhyNeedsAllowEnv("NCCL_NET_PLUGIN_REF_COUNT"), "") << "a number";
}

TEST(RankEnv, ChecksNamesThatWriteFiles) {
  for (const char* name :
       {"NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "CUDA_COREDUMP_FILE"})
    EXPECT_THAT(WhyNeedsAllowEnv(name), HasSubstr("write a file")) << name;
  EXPECT_EQ(WhyNeedsAllowEnv("NCCL_DEBUG"), "");
}

TEST(RankEnv, RejectsInvalidNamesAndValues) {
  EXPECT_EQ(WhyNoEnvName("NCCL_IB_HCA"), "");
  EXPECT_EQ(WhyNoEnvName("_x9"), "");
  EXPECT_EQ(WhyNoEnvName(""), "is empty");
  EXPECT_THAT(WhyNoEnvName("NCCL_DEBUG=INFO"), HasSubstr("letters, digits"));
  EXPECT_THAT(WhyNoEnvName("9X"), HasSubstr("not start with a digit"));
  EXPECT_THAT(WhyNoEnvName(std::string("A\0B", 3)), HasSubstr("letters, digits"));
  EXPECT_THAT(WhyNoEnvName(std::string(129, 'A')), HasSubstr("at most 128"));
  EXPECT_EQ(WhyNoEnvValue(""), "");
  EXPECT_EQ(WhyNoEnvValue(std::string(4096, 'x')), "");
  EXPECT_THAT(WhyNoEnvValue(std::string(4097, 'x')), HasSubstr("at most 4096"));
  EXPECT_THAT(WhyNoEnvValue(std::string("a\0b", 3)), HasSubstr("NUL"));
}

TEST(RankEnv, RejectsReservedNames) {
  EXPECT_NE(WhyReservedEnv("FSDPD_RANK", "j/1/0"), "");
  EXPECT_NE(WhyReservedEnv("CUDA_VISIBLE_DEVICES", "0"), "");
  EXPECT_NE(WhyReservedEnv("CUDA_DEVICE_MAX_CONNECTIONS", "1"), "");
  EXPECT_EQ(WhyReservedEnv("CUDA_DEVICE_MAX_CONNECTIONS", "32"), "");
  EXPECT_EQ(WhyReservedEnv("NCCL_DEBUG", "INFO"), "");
}

}  // namespace
}  // namespace fsdpd
