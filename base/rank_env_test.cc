#include "base/rank_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(RankEnv, LetsThroughWhatLibrariesReadAndNothingThatRunsAProgram) {
  for (const char* name : {"NCCL_DEBUG", "CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_LOGS"})
    EXPECT_EQ(WhyAskAgents(name), "") << name;
  for (const char* name : {"LD_PRELOAD", "PATH", "XNCCL_DEBUG", "NCCL", ""})
    EXPECT_EQ(WhyAskAgents(name), "is none of NCCL_*, CUDA_*, PYTORCH_*, TORCH_*") << name;
}

TEST(RankEnv, AsksForNamesThatLoadALibraryWhateverTheirPrefix) {
  for (const char* name :
       {"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_CONF_FILE",
        "CUDA_INJECTION64_PATH", "CUDA_INJECTION32_PATH", "NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH"})
    EXPECT_THAT(WhyAskAgents(name), HasSubstr("load a library")) << name;
  EXPECT_EQ(WhyAskAgents("NCCL_NET_PLUGIN_REF_COUNT"), "") << "a number";
}

TEST(RankEnv, AsksForNamesThatWriteAFile) {
  for (const char* name :
       {"NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "CUDA_COREDUMP_FILE"})
    EXPECT_THAT(WhyAskAgents(name), HasSubstr("write a file")) << name;
  EXPECT_EQ(WhyAskAgents("NCCL_DEBUG"), "");
}

TEST(RankEnv, SaysWhatIsWrongWithANameOrAValue) {
  EXPECT_EQ(WhyNoEnvName("NCCL_IB_HCA"), "");
  EXPECT_EQ(WhyNoEnvName("_x9"), "");
  EXPECT_EQ(WhyNoEnvName(""), "is empty");
  EXPECT_THAT(WhyNoEnvName("NCCL_DEBUG=INFO"), HasSubstr("letters, digits"));
  EXPECT_THAT(WhyNoEnvName("9X"), HasSubstr("no digit first"));
  EXPECT_THAT(WhyNoEnvName(std::string("A\0B", 3)), HasSubstr("letters, digits"));
  EXPECT_THAT(WhyNoEnvName(std::string(129, 'A')), HasSubstr("at most 128"));
  EXPECT_EQ(WhyNoEnvValue(""), "");
  EXPECT_EQ(WhyNoEnvValue(std::string(4096, 'x')), "");
  EXPECT_THAT(WhyNoEnvValue(std::string(4097, 'x')), HasSubstr("at most 4096"));
  EXPECT_THAT(WhyNoEnvValue(std::string("a\0b", 3)), HasSubstr("NUL"));
}

TEST(RankEnv, KeepsWhatTheDaemonSetsItself) {
  EXPECT_NE(WhyTheDaemons("FSDPD_RANK", "j/1/0"), "");
  EXPECT_NE(WhyTheDaemons("CUDA_VISIBLE_DEVICES", "0"), "");
  EXPECT_NE(WhyTheDaemons("CUDA_DEVICE_MAX_CONNECTIONS", "1"), "");
  EXPECT_EQ(WhyTheDaemons("CUDA_DEVICE_MAX_CONNECTIONS", "32"), "");
  EXPECT_EQ(WhyTheDaemons("NCCL_DEBUG", "INFO"), "");
}

}  // namespace
}  // namespace fsdpd
