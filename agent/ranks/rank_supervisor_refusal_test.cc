// Tests of launches that this node refuses: devices, paths, rank binaries, descriptors. Others continue.
#include <absl/strings/match.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "agent/testing/supervisor_case.h"

namespace fsdpd {
namespace {

using RankSupervisorRefusalTest = SupervisorCase;

TEST_F(RankSupervisorRefusalTest, RejectsUnknownOrUsedDevices) {
  options_.device = v1::DEVICE_CUDA;
  Start();
  supervisor_->Launch(Launch("stay", 1, {2}));
  events_.Await("launched 0 device 2");
  v1::Launch busy = Launch("stay", 1, {1, 2});
  busy.set_job_id("other");
  busy.set_first_rank(1);
  busy.set_world_size(3);
  supervisor_->Launch(busy);
  const v1::RankExit refused = events_.AwaitExit(1);
  EXPECT_EQ(refused.error(), "launch rejected: device 2 is not free");
  EXPECT_FALSE(refused.has_error_class()) << "the next attempt may find it free";
  EXPECT_EQ(events_.AwaitExit(2).exit_code(), 126);
  busy.clear_devices();
  busy.add_devices(0);
  busy.add_devices(4);
  busy.set_first_rank(3);
  busy.set_world_size(5);
  supervisor_->Launch(busy);
  EXPECT_EQ(events_.AwaitExit(3).error(), "launch rejected: device 4: not on this node (got 4, want 0..3)");
}

TEST_F(RankSupervisorRefusalTest, RejectsAnInvalidLaunch) {
  Start();
  v1::Launch outside = Launch("stay", 1, {0});
  outside.set_first_rank(7);
  supervisor_->Launch(outside);
  EXPECT_TRUE(absl::StrContains(events_.AwaitExit(7).error(), "invalid launch"));
  v1::Launch evil = Launch("stay", 1, {0});
  evil.set_job_id("../../etc");
  evil.set_world_size(9);
  evil.set_first_rank(8);
  supervisor_->Launch(evil);
  EXPECT_TRUE(absl::StrContains(events_.AwaitExit(8).error(), "job_id may hold only"));
}

TEST_F(RankSupervisorRefusalTest, RejectsALaunchWithoutRankBinary) {
  options_.rank_binary = "/no/such/fsdpd-rank";
  Start();
  supervisor_->Launch(Launch("stay", 1, {0, 1}));
  const v1::RankExit exit = events_.AwaitExit(1);
  EXPECT_EQ(exit.exit_code(), 126);
  EXPECT_EQ(exit.error(), "launch rejected: rank binary /no/such/fsdpd-rank: No such file or directory");
  EXPECT_EQ(exit.error_class().kind(), v1::ErrorClass::KIND_NODE);
  EXPECT_TRUE(supervisor_->Idle());
}

TEST_F(RankSupervisorRefusalTest, ReportsWhyTheRankBinaryCannotStart) {
  options_.rank_binary = dir_.File("fsdpd-rank");
  std::ofstream(options_.rank_binary) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(options_.rank_binary, std::filesystem::perms::owner_all);
  Start();
  supervisor_->Launch(Launch("stay", 1, {0, 1}));
  const v1::RankExit exit = events_.AwaitExit(1);
  EXPECT_EQ(exit.exit_code(), 126);
  EXPECT_TRUE(absl::StrContains(exit.error(), options_.rank_binary)) << exit.error();
  events_.Await("gone");
  EXPECT_TRUE(supervisor_->Idle());
}

TEST_F(RankSupervisorRefusalTest, RejectsLaunchesWhileStopping) {
  Start();
  supervisor_->StopAll(absl::Seconds(1));
  supervisor_->Launch(Launch("stay", 1, {0}));
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_EQ(exit.error(), "launch rejected: the agent is stopping");
  EXPECT_TRUE(exit.agent_stopping());
}

TEST_F(RankSupervisorRefusalTest, LaunchWithoutDescriptorsFailsAndOthersContinue) {
  Start();
  supervisor_->Launch(Launch("stay", 1, {0}));
  events_.Await("ready 0");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const pid_t rank = FactsOf(0).pid;
  const rlimit none = {3, before.rlim_max};  // All descriptors are in use.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  v1::Launch second = Launch("train", 2, {1});
  second.set_world_size(2);
  second.set_first_rank(1);
  supervisor_->Launch(second);
  const v1::RankExit refused = events_.AwaitExit(1);
  kill(rank, SIGKILL);
  const v1::RankExit killed = events_.AwaitExit(0);
  const bool idle = supervisor_->Idle();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(refused.exit_code(), 126);
  EXPECT_TRUE(absl::StrContains(refused.error(), "Too many open files")) << refused.error();
  EXPECT_EQ(killed.signal(), SIGKILL);
  ASSERT_EQ(killed.log_tail_size(), 1);
  EXPECT_EQ(killed.log_tail(0), "[fsdpd-agent: the log cannot be read: Too many open files]");
  EXPECT_FALSE(idle) << "that nothing is left cannot be seen";
  while (!supervisor_->Idle()) Pass(absl::Seconds(1));
  second.set_attempt(3);
  second.set_world_size(3);
  second.set_first_rank(2);
  supervisor_->Launch(second);
  EXPECT_EQ(events_.AwaitExit(2).exit_code(), 0);
}

TEST_F(RankSupervisorRefusalTest, PluginMustBeBelowAPluginDir) {
  std::filesystem::create_directory(dir_.File("plugins"));
  std::ofstream(dir_.File("plugins/mine.so")) << "x";
  std::ofstream(dir_.File("theirs.so")) << "x";
  options_.plugin_dirs = {ResolvePathRoot(dir_.File("plugins")).value()};
  Start();
  v1::Launch launch = Launch("train", 1, {0});
  launch.mutable_spec()->mutable_model()->mutable_plugin()->set_path(dir_.File("theirs.so"));
  supervisor_->Launch(launch);
  const v1::RankExit refused = events_.AwaitExit(0);
  EXPECT_EQ(refused.exit_code(), 126);
  EXPECT_TRUE(absl::StrContains(refused.error(), "outside of --plugin-dir")) << refused.error();
  launch.mutable_spec()->mutable_model()->mutable_plugin()->set_path(dir_.File("plugins/mine.so"));
  launch.set_attempt(2);
  launch.set_world_size(2);
  launch.set_first_rank(1);
  supervisor_->Launch(launch);
  EXPECT_EQ(events_.AwaitExit(1).exit_code(), 0);
}

TEST_F(RankSupervisorRefusalTest, PathsMustBeBelowAPathRoot) {
  std::filesystem::create_directory(dir_.File("data"));
  options_.path_roots = {ResolvePathRoot(dir_.File("data")).value()};
  Start();
  v1::Launch launch = Launch("train", 1, {0});
  launch.mutable_spec()->mutable_checkpoint()->set_dir(dir_.File("ckpt"));
  supervisor_->Launch(launch);
  const v1::RankExit refused = events_.AwaitExit(0);
  EXPECT_EQ(refused.exit_code(), 126);
  EXPECT_EQ(refused.error_class().kind(), v1::ErrorClass::KIND_CONFIGURATION);
  EXPECT_TRUE(absl::StrContains(refused.error(), "outside of --path-root")) << refused.error();
  launch.mutable_spec()->mutable_checkpoint()->set_dir(dir_.File("data/ckpt"));
  launch.set_attempt(2);
  launch.set_world_size(2);
  launch.set_first_rank(1);
  supervisor_->Launch(launch);
  EXPECT_EQ(events_.AwaitExit(1).exit_code(), 0);
}

}  // namespace
}  // namespace fsdpd
