// Tests of launches that the coordinator sends again because no acknowledgement arrived.
#include <absl/strings/match.h>

#include <filesystem>
#include <fstream>

#include "agent/testing/supervisor_case.h"

namespace fsdpd {
namespace {

class RankSupervisorLaunchTest : public SupervisorCase {
 protected:
  v1::Launch Resent(v1::Launch launch) {
    launch.set_resent(true);
    return launch;
  }
};

TEST_F(RankSupervisorLaunchTest, AcknowledgesLaunchesAndRepeats) {
  Start();
  v1::Launch launch = Launch("stay", 1, {0, 1});
  launch.set_world_size(4);
  launch.set_first_rank(2);
  supervisor_->Launch(launch);
  events_.Await("ready 3");
  EXPECT_EQ(events_.Count("acknowledged 2"), 1);
  supervisor_->Launch(Resent(launch));
  Pass(absl::Seconds(1));
  EXPECT_EQ(events_.Count("acknowledged 2"), 2);
  EXPECT_EQ(events_.Count("launched 2 device 0"), 1);
}

TEST_F(RankSupervisorLaunchTest, AcknowledgesARepeatedLaunchOfAnEndedAttempt) {
  Start();
  const v1::Launch launch = Launch("train", 1, {0});
  supervisor_->Launch(launch);
  EXPECT_EQ(events_.AwaitExit(0).exit_code(), 0);
  events_.Await("gone");
  supervisor_->Launch(Resent(launch));
  Pass(absl::Seconds(1));
  EXPECT_EQ(events_.Count("acknowledged 0"), 2);
  EXPECT_EQ(events_.Count("exit 0"), 1) << "a refusal would say that attempt 1 was here before";
  EXPECT_EQ(events_.Count("launched 0 device 0"), 1);
}

TEST_F(RankSupervisorLaunchTest, StartsAResentLaunchThatNeverArrived) {
  Start();
  supervisor_->Launch(Resent(Launch("stay", 1, {0})));
  events_.Await("ready 0");
  EXPECT_EQ(events_.Count("acknowledged 0"), 1);
}

TEST_F(RankSupervisorLaunchTest, NamesDirectoryForPackage) {
  std::filesystem::create_directory(dir_.File("packages"));
  const std::string path = dir_.File("packages/mine.fsdpd");
  std::ofstream(path) << "x";
  options_.plugin_dirs = {ResolvePathRoot(dir_.File("packages")).value()};
  Start();
  v1::Launch launch = Launch("train", 1, {0, 1});
  launch.mutable_spec()->mutable_model()->mutable_package()->set_path(path);
  supervisor_->Launch(launch);
  EXPECT_EQ(events_.AwaitExit(0).exit_code(), 0);
  EXPECT_EQ(events_.AwaitExit(1).exit_code(), 0);
  EXPECT_EQ(events_.Count("unpacks in " + logs_.DirectoryOf({"job", 1}) + "/package"), 2);
  launch.mutable_spec()->mutable_model()->mutable_package()->set_path("/elsewhere/mine.fsdpd");
  launch.set_attempt(2);
  launch.set_world_size(3);
  launch.set_ranks(1);
  launch.set_first_rank(2);
  supervisor_->Launch(launch);
  const v1::RankExit refused = events_.AwaitExit(2);
  EXPECT_TRUE(absl::StrContains(refused.error(), "model.package.path: ")) << refused.error();
  EXPECT_EQ(refused.error_class().kind(), v1::ErrorClass::KIND_CONFIGURATION);
  EXPECT_TRUE(refused.error_class().permanent());
}

// Its file system may not be mounted yet.
TEST_F(RankSupervisorLaunchTest, AnotherNodeMayHaveAMissingPackage) {
  options_.plugin_dirs = {ResolvePathRoot(dir_.path()).value()};
  Start();
  v1::Launch launch = Launch("train", 1, {0});
  launch.mutable_spec()->mutable_model()->mutable_package()->set_path(dir_.File("mine.fsdpd"));
  supervisor_->Launch(launch);
  const v1::ErrorClass fault = events_.AwaitExit(0).error_class();
  EXPECT_EQ(fault.kind(), v1::ErrorClass::KIND_CONFIGURATION);
  EXPECT_TRUE(fault.node_only());
  EXPECT_FALSE(fault.permanent());
}

TEST_F(RankSupervisorLaunchTest, DoesNotAcknowledgeARefusedLaunch) {
  Start();
  supervisor_->Launch(Launch("stay", 2, {0}));
  events_.Await("ready 0");
  supervisor_->Launch(Resent(Launch("stay", 1, {1})));
  EXPECT_TRUE(absl::StrContains(events_.AwaitExit(0).error(), "attempt 1 is stale"));
  EXPECT_EQ(events_.Count("acknowledged 0"), 1) << "that of attempt 2";
}

}  // namespace
}  // namespace fsdpd
