#include "agent/launch/launch_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

v1::Launch TwoRanks() {
  v1::Launch launch;
  launch.set_job_id("job");
  launch.set_attempt(3);
  launch.set_world_size(2);
  launch.set_ranks(2);
  launch.add_devices(0);
  launch.add_devices(1);
  return launch;
}

NodeUse Idle() {
  NodeUse use;
  use.device = v1::DEVICE_CUDA;
  use.slots = 4;
  return use;
}

TEST(LaunchCheck, AcceptsAValidLaunch) {
  EXPECT_EQ(LaunchError(TwoRanks(), Idle()), "");
  NodeUse use = Idle();
  use.devices = {2, 3};
  use.newest_attempt = 2;
  EXPECT_EQ(LaunchError(TwoRanks(), use), "");
}

TEST(LaunchCheck, RejectsStaleLaunchesAndUsedSlots) {
  NodeUse use = Idle();
  use.newest_attempt = 3;
  EXPECT_EQ(LaunchError(TwoRanks(), use), "attempt 3 is stale: attempt 3 was already here");
  use = Idle();
  use.devices = {1, 2, 3};
  EXPECT_EQ(LaunchError(TwoRanks(), use), "2 ranks need as many slots, and 1 of 4 are free");
  use.devices = {1};
  EXPECT_EQ(LaunchError(TwoRanks(), use), "device 1 is not free");
  use.device = v1::DEVICE_CPU;
  EXPECT_EQ(LaunchError(TwoRanks(), use), "") << "devices are no matter of CPU ranks";
}

TEST(LaunchCheck, RejectsVariablesThatTheNodeDoesNotAllow) {
  v1::Launch launch = TwoRanks();
  const auto set = [&](const std::string& name, const std::string& value) {
    launch.mutable_spec()->clear_env();
    launch.mutable_spec()->add_env()->set_name("NCCL_DEBUG");
    v1::Variable* variable = launch.mutable_spec()->add_env();
    variable->set_name(name);
    variable->set_value(value);
    return launch;
  };
  NodeUse use = Idle();
  use.allowed_env = {"CUDA_CACHE_*"};
  EXPECT_EQ(LaunchError(set("MY_APP_MODE", "x"), use), "") << "no library of ours reads it";
  EXPECT_EQ(LaunchError(set("CUDA_CACHE_PATH", "/cache"), use), "");
  EXPECT_EQ(LaunchError(set("LD_PRELOAD", "/tmp/x.so"), use),
            "env[1].name: 'LD_PRELOAD' is not allowed on this node: its agent has no --allow-env LD_PRELOAD");
  EXPECT_THAT(LaunchError(set("NCCL_NET_PLUGIN", "/tmp/x.so"), use),
              HasSubstr("no --allow-env NCCL_NET_PLUGIN"));
  use.allowed_env = {"NCCL_NET_PLUGIN"};
  EXPECT_EQ(LaunchError(set("NCCL_NET_PLUGIN", "/tmp/x.so"), use), "");
  EXPECT_THAT(LaunchError(set("FSDPD_RANK", "other/1/0"), use), HasSubstr("env[1].name: 'FSDPD_RANK'"));
  EXPECT_THAT(LaunchError(set("NCCL_DEBUG=INFO", ""), use), HasSubstr("letters, digits"));
  EXPECT_THAT(LaunchError(set("NCCL_DEBUG", std::string(5000, 'x')), use), HasSubstr("env[1].value"));
}

}  // namespace
}  // namespace fsdpd
