#include "agent/ranks/hosted_rank.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/rank/flight_recorder.h"

namespace fsdpd {
namespace {

TEST(HostedRank, LaunchOfSetsRankAndDevice) {
  v1::Launch launch;
  launch.set_job_id("job");
  launch.set_attempt(2);
  launch.set_world_size(6);
  launch.set_first_rank(4);
  launch.set_ranks(2);
  launch.add_devices(3);
  launch.add_devices(1);
  launch.mutable_spec()->set_name("n");
  launch.add_skipped_samples()->set_end(48);
  launch.set_checkpoint_step(60);
  const v1::RankLaunch second = LaunchOf(launch, 1, "10.0.0.7");
  EXPECT_EQ(second.rank(), 5);
  EXPECT_EQ(second.device(), 1);
  EXPECT_EQ(second.world_size(), 6);
  EXPECT_EQ(second.attempt(), 2);
  EXPECT_EQ(second.bind_address(), "10.0.0.7");
  EXPECT_EQ(second.spec().name(), "n");
  ASSERT_EQ(second.skipped_samples_size(), 1);
  EXPECT_EQ(second.skipped_samples(0).end(), 48);
  EXPECT_EQ(second.checkpoint_step(), 60);
  launch.clear_devices();
  EXPECT_EQ(LaunchOf(launch, 1, "").device(), 1) << "nobody chose one";
}

TEST(HostedRank, ExitZeroWithoutFinishedIsAnError) {
  HostedRank rank;
  EXPECT_EQ(rank.ExitOf({}, {}).error(), "exited with code 0 before it reported completion");
  rank.finished = true;
  EXPECT_EQ(rank.ExitOf({}, {}).error(), "");
  ProcessEnd killed;
  killed.signal = SIGKILL;
  rank.finished = false;
  EXPECT_EQ(rank.ExitOf(killed, {}).error(), "");
  EXPECT_EQ(rank.ExitOf(killed, {}).signal(), SIGKILL);
  rank.final_error = "out of memory";
  EXPECT_EQ(rank.ExitOf({}, {}).error(), "out of memory");
}

TEST(HostedRank, ExitHasTheBadStep) {
  HostedRank rank;
  EXPECT_FALSE(rank.ExitOf({}, {}).has_bad_step());
  rank.bad_step.emplace().set_step(7);
  ProcessEnd failed;
  failed.exit_code = 1;
  EXPECT_EQ(rank.ExitOf(failed, {}).bad_step().step(), 7);
}

// A library could not be loaded, or could not allocate memory.
TEST(HostedRank, LastLogLineIsTheErrorOfARankThatDidNotStart) {
  HostedRank rank;
  const absl::StatusOr<int> fd = MakeFlightRecorder();
  ASSERT_TRUE(fd.ok()) << fd.status();
  rank.flight = UniqueFd(*fd);
  const std::vector<std::string> tail = {"cannot load libtorch_cpu.so", "[fsdpd-agent: lines are lost]"};
  ProcessEnd end;
  end.exit_code = 127;
  EXPECT_EQ(rank.ExitOf(end, tail).error(),
            "exited before it started (exit code 127): cannot load libtorch_cpu.so");
  EXPECT_EQ(rank.ExitOf(end, tail).log_tail_size(), 2);
  EXPECT_EQ(rank.ExitOf(end, {}).error(), "");
  end.exit_code = 0;
  end.signal = SIGABRT;
  EXPECT_EQ(rank.ExitOf(end, tail).error(),
            "exited before it started (signal 6): cannot load libtorch_cpu.so");
  end.signal = SIGKILL;  // Sent by another process, so the log does not explain it.
  EXPECT_EQ(rank.ExitOf(end, tail).error(), "");
  const auto recorder = FlightRecorder::Map(rank.flight.get());
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  const PhaseScope loading(recorder->get(), FlightPhase::kLoading);
  end.signal = SIGABRT;
  EXPECT_EQ(rank.ExitOf(end, tail).error(), "") << "what it says now may be of another matter";
}

TEST(HostedRank, IsNotStartedWithoutALog) {
  HostedRank rank;
  const absl::Status started = rank.Start({}, "/bin/true", nullptr, v1::DEVICE_CPU,
                                          absl::UnavailableError("/dev/null: Too many open files"));
  EXPECT_EQ(std::string(started.message()), "/dev/null: Too many open files");
  EXPECT_EQ(rank.process, nullptr);
  rank.Send({});  // No process.
}

}  // namespace
}  // namespace fsdpd
