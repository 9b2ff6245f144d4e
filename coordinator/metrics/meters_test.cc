#include "coordinator/metrics/meters.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/job/job_machine.h"
#include "coordinator/job/recovery.h"

namespace fsdpd {
namespace {

using Placements = google::protobuf::RepeatedPtrField<v1::Job::Placement>;

class MetersTest : public ::testing::Test {
 protected:
  MetersTest() {
    job_.set_id("a-1");
    job_.set_state(v1::JOB_STATE_QUEUED);
    AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", now_, &job_);
  }
  void Advance(JobEvent event, double seconds) { Advance(event, seconds, job_.placements()); }
  void Advance(JobEvent event, double seconds, const Placements& placements) {
    now_ += absl::Seconds(seconds);
    const v1::Job before = job_;
    ASSERT_TRUE(Apply(event, "", now_, &job_).ok());
    *job_.mutable_placements() = Placements(placements);
    meters_.Changed(before, job_);
  }
  void Launch(const std::vector<std::pair<std::string, int>>& nodes) {
    Placements placements;
    for (const auto& [node, ranks] : nodes) {
      placements.Add()->set_node(node);
      placements.rbegin()->set_ranks(ranks);
    }
    Advance(JobEvent::kLaunch, 1, placements);
  }
  void FailAndRetry(v1::FailureCause cause) {
    job_.mutable_failure()->set_attempt(job_.attempt());
    job_.mutable_failure()->set_cause(cause);
    Advance(JobEvent::kFail, 1);
    Advance(JobEvent::kRetry, 1);
  }
  void ExpectLine(const std::string& line) const {
    const std::string text = prometheus::TextSerializer().Serialize(meters_.Collect());
    EXPECT_TRUE(absl::StrContains(text, absl::StrCat("\n", line, "\n"))) << line << " in\n" << text;
  }
  void ExpectRecoveries(const std::string& phase, int count) const {
    ExpectLine(absl::StrCat("fsdpd_recovery_seconds_count{phase=\"", phase, "\"} ", count));
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  v1::Job job_;
  Meters meters_;
};

TEST_F(MetersTest, LaunchRecordsQueueWait) {
  Advance(JobEvent::kNote, 5);
  Advance(JobEvent::kPreflight, 2);
  Advance(JobEvent::kLaunch, 13);
  ExpectLine("fsdpd_queue_wait_seconds_sum 20");
  ExpectLine("fsdpd_queue_wait_seconds_bucket{le=\"10\"} 0");
  ExpectLine("fsdpd_queue_wait_seconds_bucket{le=\"60\"} 1");
  ExpectLine("fsdpd_job_transitions_total{to=\"STARTING\"} 1");
  ExpectLine("fsdpd_job_transitions_total{to=\"QUEUED\"} 0");
}

TEST_F(MetersTest, RecoveryLastsFromFailureUntilAllRanksAreReady) {
  Advance(JobEvent::kLaunch, 1);
  Advance(JobEvent::kReady, 1);
  ExpectRecoveries("start", 0);
  job_.mutable_failure()->set_cause(v1::FAILURE_CAUSE_NODE);
  Advance(JobEvent::kFail, 100);
  Advance(JobEvent::kRetry, 2);
  Advance(JobEvent::kLaunch, 3);
  Advance(JobEvent::kReady, 4);
  ExpectLine("fsdpd_recovery_seconds_sum{phase=\"stop\"} 2");
  ExpectLine("fsdpd_recovery_seconds_sum{phase=\"queue\"} 3");
  ExpectLine("fsdpd_recovery_seconds_sum{phase=\"start\"} 4");
  for (const char* phase : {"stop", "queue", "preflight", "start", "load"}) ExpectRecoveries(phase, 1);
  ExpectLine("fsdpd_job_failures_total{cause=\"node\"} 1");
  ExpectLine("fsdpd_job_failures_total{cause=\"hang\"} 0");
}

TEST_F(MetersTest, CountsRestartsByCauseAndPlacement) {
  ExpectLine("fsdpd_job_restarts_total{cause=\"hang\",mode=\"resized\"} 0");
  Launch({{"n0", 2}, {"n1", 2}});
  FailAndRetry(v1::FAILURE_CAUSE_PROCESS);
  Launch({{"n1", 2}, {"n0", 2}});
  FailAndRetry(v1::FAILURE_CAUSE_NODE);
  Launch({{"n0", 2}, {"n2", 2}});
  FailAndRetry(v1::FAILURE_CAUSE_NODE);
  Launch({{"n0", 2}});
  ExpectLine("fsdpd_job_restarts_total{cause=\"process\",mode=\"in_place\"} 1");
  ExpectLine("fsdpd_job_restarts_total{cause=\"node\",mode=\"moved\"} 1");
  ExpectLine("fsdpd_job_restarts_total{cause=\"node\",mode=\"resized\"} 1");
  ExpectLine("fsdpd_job_restarts_total{cause=\"process\",mode=\"moved\"} 0");
}

TEST_F(MetersTest, RetryAfterFailureIsNotRestart) {
  Launch({{"n0", 2}});
  FailAndRetry(v1::FAILURE_CAUSE_PROCESS);
  for (const JobEvent event : {JobEvent::kPause, JobEvent::kResume}) Advance(event, 1);
  Launch({{"n0", 2}});
  for (const JobEvent event : {JobEvent::kFail, JobEvent::kGiveUp, JobEvent::kUserRetry}) Advance(event, 1);
  Launch({{"n0", 2}});
  ExpectLine("fsdpd_job_restarts_total{cause=\"process\",mode=\"in_place\"} 0");
}

TEST_F(MetersTest, LaunchAfterPauseIsNotRestart) {
  Launch({{"n0", 2}});
  FailAndRetry(v1::FAILURE_CAUSE_PROCESS);
  Launch({{"n0", 2}});
  for (const JobEvent event : {JobEvent::kPause, JobEvent::kRanksGone, JobEvent::kResume}) Advance(event, 1);
  Launch({{"n1", 2}});
  ExpectLine("fsdpd_job_restarts_total{cause=\"process\",mode=\"in_place\"} 1");
  ExpectLine("fsdpd_job_restarts_total{cause=\"process\",mode=\"moved\"} 0");
}

TEST_F(MetersTest, PauseIsNotRecovery) {
  for (const JobEvent event : {JobEvent::kLaunch, JobEvent::kReady, JobEvent::kFail, JobEvent::kPause,
                               JobEvent::kRanksGone, JobEvent::kResume, JobEvent::kLaunch, JobEvent::kReady})
    Advance(event, 1);
  for (const char* phase : kRecoveryPhases) ExpectRecoveries(phase, 0);
}

TEST_F(MetersTest, RecordsReplayOnceAtItsEnd) {
  Advance(JobEvent::kLaunch, 1);
  Advance(JobEvent::kReady, 1);
  job_.mutable_ledger()->set_newest_step(20);
  job_.mutable_restored()->set_step(20);
  FailAndRetry(v1::FAILURE_CAUSE_PROCESS);
  Advance(JobEvent::kLaunch, 1);
  job_.mutable_restored()->set_step(20);
  Advance(JobEvent::kReady, 1);
  ExpectRecoveries("replay", 1);  // Nothing was lost.
  ExpectLine("fsdpd_recovery_seconds_sum{phase=\"replay\"} 0");
  FailAndRetry(v1::FAILURE_CAUSE_PROCESS);
  Advance(JobEvent::kLaunch, 1);
  job_.mutable_restored()->set_step(10);
  Advance(JobEvent::kReady, 1);
  ExpectRecoveries("replay", 1);
  for (int step = 11; step <= 22; ++step) {
    job_.mutable_last_step()->set_step(step);
    meters_.Stepped(job_, step - 1, std::max(20, step - 1), now_ += absl::Seconds(1));
  }
  ExpectRecoveries("replay", 2);
  ExpectLine("fsdpd_recovery_seconds_sum{phase=\"replay\"} 10");
}

TEST_F(MetersTest, RecordsReplayInterruptedByFailure) {
  Advance(JobEvent::kLaunch, 1);
  Advance(JobEvent::kReady, 1);
  job_.mutable_ledger()->set_newest_step(20);
  FailAndRetry(v1::FAILURE_CAUSE_PROCESS);
  Advance(JobEvent::kLaunch, 1);
  job_.mutable_restored()->set_step(10);
  Advance(JobEvent::kReady, 1);
  job_.mutable_last_step()->set_step(15);
  ExpectRecoveries("replay", 0);
  now_ += absl::Seconds(7);
  FailAndRetry(v1::FAILURE_CAUSE_PROCESS);
  ExpectRecoveries("replay", 1);
  ExpectLine("fsdpd_recovery_seconds_sum{phase=\"replay\"} 8");
}

TEST_F(MetersTest, CountsCallsByMethodAndCode) {
  meters_.Called("GetJob", absl::StatusCode::kOk, absl::Milliseconds(3));
  meters_.Called("GetJob", absl::StatusCode::kNotFound, absl::Milliseconds(1));
  meters_.Opened("WatchJob");
  meters_.Opened("WatchJob");
  meters_.Closed("WatchJob", absl::StatusCode::kCancelled);
  ExpectLine("fsdpd_rpc_seconds_bucket{method=\"GetJob\",code=\"OK\",le=\"0.005\"} 1");
  ExpectLine("fsdpd_rpc_seconds_bucket{method=\"GetJob\",code=\"OK\",le=\"0.001\"} 0");
  ExpectLine("fsdpd_rpc_seconds_count{method=\"GetJob\",code=\"NOT_FOUND\"} 1");
  ExpectLine("fsdpd_open_streams{method=\"WatchJob\"} 1");
  ExpectLine("fsdpd_stream_calls_total{method=\"WatchJob\",code=\"CANCELLED\"} 1");
}

TEST_F(MetersTest, NotFoundIsNotStoreError) {
  meters_.Stored("Get", absl::StatusCode::kNotFound, absl::Milliseconds(1));
  ExpectLine("fsdpd_store_errors_total{operation=\"Get\"} 0");
  meters_.Stored("Get", absl::StatusCode::kResourceExhausted, absl::Milliseconds(1));
  ExpectLine("fsdpd_store_errors_total{operation=\"Get\"} 1");
  ExpectLine("fsdpd_store_seconds_count{operation=\"Get\"} 2");
  for (const char* operation : {"Insert", "Update"})
    meters_.Stored(operation, absl::StatusCode::kOutOfRange, absl::Milliseconds(1));
  ExpectLine("fsdpd_store_errors_total{operation=\"Insert\"} 0");
  ExpectLine("fsdpd_store_errors_total{operation=\"Update\"} 1");
}

TEST_F(MetersTest, SubmitCountersStartAtZeroAndRulesAreCounted) {
  ExpectLine("fsdpd_submits_total{outcome=\"refused\"} 0");
  ExpectLine("fsdpd_submit_violations_total{rule=\"global_batch_divisible\"} 0");
  meters_.Submitted(Meters::Submit::kRefused);
  meters_.Refused("global_batch_divisible");
  ExpectLine("fsdpd_submits_total{outcome=\"refused\"} 1");
  ExpectLine("fsdpd_submit_violations_total{rule=\"global_batch_divisible\"} 1");
}

}  // namespace
}  // namespace fsdpd
