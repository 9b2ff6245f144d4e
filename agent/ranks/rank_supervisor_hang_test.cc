// Tests of hang detection: which ranks are reported, when, and with what evidence.
#include <gmock/gmock.h>

#include <filesystem>

#include "agent/testing/supervisor_case.h"

namespace fsdpd {
namespace {

class RankSupervisorHangTest : public SupervisorCase {};

TEST_F(RankSupervisorHangTest, ReportsAStoppedRankUntilItResumes) {
  StartBlocked(5, {0, 1});
  StopRank(1);
  Pass(absl::Seconds(4));
  const std::string report = absl::StrCat("still 1: PROCESS_STATE_STOPPED; ", kInReduce);
  EXPECT_FALSE(events_.Has(report));
  Pass(absl::Seconds(6));  // One more second for the evidence file.
  events_.Await(report);
  const std::string evidence = dir_.path() + "/job/attempt-1/rank-1.hang.txt";
  // The fake clock advances faster than the file is written.
  while (!events_.Has("evidence 1")) Pass(absl::Seconds(1));
  EXPECT_TRUE(std::filesystem::exists(evidence));
  ContinueRank(1);
  Pass(absl::Seconds(2));
  events_.Await("moves 1");
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/job/attempt-1/rank-0.hang.txt"))
      << "it has made no step yet, and that may take its time";
}

// Regression, for example on a full disk: the failure of the job named a missing file.
TEST_F(RankSupervisorHangTest, DoesNotNameEvidenceThatCannotBeWritten) {
  StartBlocked(5, {0});
  std::filesystem::create_directory(dir_.path() + "/job/attempt-1/rank-0.hang.txt.part");
  StopRank(0);
  Pass(absl::Seconds(8));
  events_.Await(absl::StrCat("still 0: PROCESS_STATE_STOPPED; ", kInReduce));
  Pass(absl::Seconds(8));
  EXPECT_EQ(events_.Count("evidence 0"), 0);
}

TEST_F(RankSupervisorHangTest, SuspensionOfTheAgentRestartsTheClock) {
  StartBlocked(5, {0});
  StopRank(0);
  Pass(absl::Seconds(2));
  clock_.Advance(absl::Hours(1));  // Within one iteration of the loop.
  Pass(absl::Seconds(3));
  const std::string report = absl::StrCat("still 0: PROCESS_STATE_STOPPED; ", kInReduce);
  EXPECT_FALSE(events_.Has(report));
  Pass(absl::Seconds(6));  // One more second for the evidence file.
  events_.Await(report);
}

TEST_F(RankSupervisorHangTest, ReconnectRestartsTheClockForJobsAcrossNodes) {
  Start();
  v1::Launch launch = Launch("blocks-in-reduce", 1, {0});
  launch.set_world_size(2);
  launch.mutable_spec()->mutable_restart()->set_hang_seconds(5);
  supervisor_->Launch(launch);
  events_.Await("ready 0");
  StopRank(0);
  Pass(absl::Seconds(4));
  supervisor_->SetConnected(false);
  supervisor_->SetConnected(true);
  Pass(absl::Seconds(4));
  const std::string report = absl::StrCat("still 0: PROCESS_STATE_STOPPED; ", kInReduce);
  EXPECT_FALSE(events_.Has(report));
  Pass(absl::Seconds(6));  // One more second for the evidence file.
  events_.Await(report);
}

TEST_F(RankSupervisorHangTest, DoesNotReportWithoutHangDetection) {
  StartBlocked(0, {0});
  StopRank(0);
  Pass(absl::Minutes(20));
  EXPECT_FALSE(events_.Has(absl::StrCat("still 0: PROCESS_STATE_STOPPED; ", kInReduce)));
}

TEST_F(RankSupervisorHangTest, HangIsLoggedForEachRankAndCountedOnItsNode) {
  StartBlocked(30, {0, 1});
  v1::Stop stop = Stop(1, 60000);
  stop.mutable_hang()->set_rank(1);
  stop.mutable_hang()->set_verdict("no progress for 31 s");
  supervisor_->Stop(stop);
  supervisor_->Stop(stop);  // Repeated by the coordinator.
  events_.Await("hung 1");
  events_.AwaitExit(0);
  EXPECT_THAT(logs_.Tail({{"job", 1}, 0}, 9),
              testing::Contains("[fsdpd-agent: rank 1 hangs: no progress for 31 s]"));
  EXPECT_EQ(events_.Count("hung 1"), 1);
}

}  // namespace
}  // namespace fsdpd
