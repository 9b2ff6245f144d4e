#include "coordinator/serve/metrics_page.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/process/process_metrics.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/testing/reconciler_case.h"
#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

class MetricsPageTest : public ReconcilerCase {
 protected:
  void Show(MetricsPage* page) {
    page->Show({board_.get(), nodes_.get(), reconciler_.get(), &store_->events(), dir_.path(), 7});
  }
  static std::string TextOf(MetricsPage* page) {
    return prometheus::TextSerializer().Serialize(page->Collect());
  }
  void ExpectLine(const std::string& line) {
    const std::string text = TextOf(&page_);
    EXPECT_TRUE(absl::StrContains(text, absl::StrCat("\n", line, "\n"))) << line << " in\n" << text;
  }

  MetricsPage page_{&clock_};
};

TEST_F(MetricsPageTest, StandbyExportsNoJobsAndAgents) {
  ExpectLine("fsdpd_coordinator_leader 0");
  EXPECT_FALSE(absl::StrContains(TextOf(&page_), "fsdpd_jobs{"));
  Show(&page_);
  ExpectLine("fsdpd_coordinator_leader 1");
  ExpectLine("fsdpd_coordinator_generation 7");
  page_.Hide();
  ExpectLine("fsdpd_coordinator_leader 0");
  EXPECT_FALSE(absl::StrContains(TextOf(&page_), "fsdpd_agents{"));
}

TEST_F(MetricsPageTest, ExportsStaleFilesByFlag) {
  page_.ExportFiles([] {
    return std::vector<MetricsPage::FileState>{{"--tokens", true}, {"--quotas", false}};
  });
  ExpectLine("fsdpd_coordinator_file_stale{file=\"--tokens\"} 1");
  ExpectLine("fsdpd_coordinator_file_stale{file=\"--quotas\"} 0");
  EXPECT_FALSE(absl::StrContains(TextOf(&page_), "expiry_timestamp_seconds{"));
}

// An invalid certificate also marked the CA file as stale.
TEST_F(MetricsPageTest, OnlyTheInvalidTlsFileIsStale) {
  page_.ExportFiles([] {
    return TlsFileStates({"--etcd-ca", "--etcd-cert", "--etcd-key"}, {"pki/ca", "pki/c", "pki/c.key"},
                         "pki/c: contains no PEM certificate", absl::FromUnixSeconds(7),
                         absl::FromUnixSeconds(9));
  });
  ExpectLine("fsdpd_coordinator_file_stale{file=\"--etcd-ca\"} 0");
  ExpectLine("fsdpd_coordinator_file_stale{file=\"--etcd-cert\"} 1");
  ExpectLine("fsdpd_coordinator_file_stale{file=\"--etcd-key\"} 0");
  ExpectLine("fsdpd_coordinator_certificate_expiry_timestamp_seconds{file=\"--etcd-cert\"} 7");
  ExpectLine("fsdpd_coordinator_certificate_expiry_timestamp_seconds{file=\"--etcd-ca\"} 9");
}

TEST_F(MetricsPageTest, CountsLostAuditLines) {
  ExpectLine("fsdpd_audit_lines_lost_total 0");
  const std::shared_ptr<AuditLog> audit = *AuditLog::Open("/dev/full", 1 << 20);
  audit->Write(AuditRecord());
  while (audit->lost() < 1) std::this_thread::yield();
  MetricsPage page(&clock_, nullptr, audit);
  EXPECT_TRUE(absl::StrContains(TextOf(&page), "\nfsdpd_audit_lines_lost_total 1\n"));
}

TEST_F(MetricsPageTest, CountsLiveJobsByState) {
  Show(&page_);
  v1::Job job;
  for (int i = 0; i < 3; ++i) {
    job.set_id(absl::StrCat("a-", i));
    job.set_state(i == 0 ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_QUEUED);
    board_->Publish(job);
  }
  ExpectLine("fsdpd_jobs{state=\"QUEUED\"} 2");
  ExpectLine("fsdpd_jobs{state=\"RUNNING\"} 1");
  ExpectLine("fsdpd_jobs{state=\"PAUSED\"} 0");
  job.set_state(v1::JOB_STATE_CANCELLED);
  board_->Publish(job);
  ExpectLine("fsdpd_jobs{state=\"QUEUED\"} 1");
}

TEST_F(MetricsPageTest, CountsAgentsAndSlots) {
  Show(&page_);
  Attach("n0", 4);
  Attach("n1", 2);
  reconciler_->RunOnce();
  ExpectLine("fsdpd_agents{state=\"ready\"} 2");
  ExpectLine("fsdpd_slots{state=\"free\"} 6");
  clock_.Advance(absl::Seconds(4));
  ExpectLine("fsdpd_agent_heartbeat_age_seconds 4");
  ExpectLine("fsdpd_agents_cordoned 0");
}

TEST_F(MetricsPageTest, CountsJobsThatWaitForACordonedNode) {
  Show(&page_);
  Attach("a", 1);
  Attach("b", 1);
  ASSERT_TRUE(reconciler_->Cordon("a", "a fan is broken").ok());
  Submit("j", 2, 1);
  Submit("k", 1, 1);
  ExpectLine("fsdpd_cordoned_node_waiting_jobs{fsdpd_node=\"a\"} 1");
  ASSERT_TRUE(reconciler_->Uncordon("a").ok());
  EXPECT_FALSE(absl::StrContains(TextOf(&page_), "fsdpd_cordoned_node_waiting_jobs{"));
}

TEST_F(MetricsPageTest, StateBytesAndEventsIncrease) {
  Show(&page_);
  ExpectLine("fsdpd_events_total 0");
  const auto bytes = [this] {
    const std::string text = TextOf(&page_), name = "\nfsdpd_state_bytes ";
    return std::stod(text.substr(text.find(name) + name.size()));
  };
  const double before = bytes();
  EXPECT_GT(before, 0);
  v1::Job job;
  job.set_id("a-1");
  job.set_reason(std::string(1 << 20, 'x'));
  AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", clock_.Wall(), &job);
  ASSERT_TRUE(store_->Insert(job).ok());
  ExpectLine("fsdpd_events_total 1");
  EXPECT_GT(bytes(), before + (1 << 20));
}

TEST_F(MetricsPageTest, CountsFailedAttemptsByCause) {
  Show(&page_);
  v1::Job job;
  job.set_id("a-1");
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_attempt(3);
  for (const auto cause : {v1::FAILURE_CAUSE_HANG, v1::FAILURE_CAUSE_NODE, v1::FAILURE_CAUSE_HANG})
    job.add_failed_attempts()->set_cause(cause);
  board_->Publish(job);
  ExpectLine("fsdpd_job_failed_attempts{fsdpd_job=\"a-1\",cause=\"hang\"} 2");
  ExpectLine("fsdpd_job_failed_attempts{fsdpd_job=\"a-1\",cause=\"node\"} 1");
}

TEST_F(MetricsPageTest, ExportsPredictedStepTimeAndMfu) {
  Show(&page_);
  v1::Job job;
  job.set_id("a-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_attempt(1);
  *job.mutable_resolved() = TinySpec(1, 2);
  job.mutable_last_step()->set_step_seconds(0.5);
  board_->Publish(job);
  page_.Collect();
  page_.AwaitPredictions();
  std::map<std::string, double> parts;
  double predicted = 0, reached = 0;
  for (const prometheus::MetricFamily& family : page_.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (family.name == "fsdpd_job_predicted_step_seconds")
        parts[metric.label[1].value] = metric.gauge.value;
      if (family.name == "fsdpd_job_predicted_mfu_ratio") predicted = metric.gauge.value;
      if (family.name == "fsdpd_job_mfu_ratio") reached = metric.gauge.value;
    }
  }
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_GT(parts["compute"], 0);
  EXPECT_GT(predicted, 0);
  const double step = parts["compute"] + parts["exposed"] + parts["rest"];
  EXPECT_NEAR(reached * 0.5, predicted * step, predicted * step * 1e-9)
      << "the same FLOPs in a different time";
  job.set_state(v1::JOB_STATE_STOPPING);
  board_->Publish(job);
  EXPECT_FALSE(absl::StrContains(TextOf(&page_), "fsdpd_job_mfu_ratio{"));
}

TEST_F(MetricsPageTest, ExportsOnlyTheSlowestRank) {
  Show(&page_);
  v1::Job job;
  job.set_id("a-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_attempt(1);
  for (const auto& [rank, score] : {std::pair(3, 1.5), std::pair(2, 1.25)}) {
    v1::SlowRank* slow = job.add_slowest_ranks();
    slow->set_rank(rank);
    slow->set_node("n1");
    slow->set_score(score);
  }
  board_->Publish(job);
  ExpectLine("fsdpd_job_slowest_rank_score{fsdpd_job=\"a-1\",rank=\"3\",fsdpd_node=\"n1\"} 1.5");
  EXPECT_FALSE(absl::StrContains(TextOf(&page_), "rank=\"2\""));
  job.set_state(v1::JOB_STATE_STOPPING);
  board_->Publish(job);
  EXPECT_FALSE(absl::StrContains(TextOf(&page_), "rank=\"3\"")) << "of an ended attempt";
}

TEST_F(MetricsPageTest, ExportsTheLedgerUntilTheJobEnds) {
  Show(&page_);
  v1::Job job;
  job.set_id("a-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_attempt(1);
  job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall() - absl::Seconds(60)));
  job.mutable_ledger()->set_queue_seconds(10);
  job.mutable_ledger()->set_step_seconds(30);
  job.mutable_ledger()->set_cause(v1::Job::Ledger::CAUSE_OTHER);
  job.mutable_ledger()->set_until_unix_nanos(absl::ToUnixNanos(clock_.Wall() - absl::Seconds(20)));
  board_->Publish(job);
  ExpectLine("fsdpd_job_seconds{fsdpd_job=\"a-1\",cause=\"step\"} 30");
  ExpectLine("fsdpd_job_seconds{fsdpd_job=\"a-1\",cause=\"other\"} 20");
  ExpectLine("fsdpd_all_jobs_seconds{cause=\"queue\"} 10");
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  board_->Publish(job);
  EXPECT_FALSE(absl::StrContains(TextOf(&page_), "a-1"));
}

// The page of a former standby is older than its leadership, and used a different clock origin.
TEST_F(MetricsPageTest, ClockStepBeforeLeadershipIsNotJobTime) {
  clock_.StepWall(absl::Hours(24));
  Restart();
  Show(&page_);
  v1::Job job;
  job.set_id("a-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_attempt(1);
  job.mutable_ledger()->set_cause(v1::Job::Ledger::CAUSE_OTHER);
  job.mutable_ledger()->set_until_unix_nanos(absl::ToUnixNanos(reconciler_->ledger_date().Now()));
  board_->Publish(job);
  clock_.Advance(absl::Seconds(5));
  ExpectLine("fsdpd_job_seconds{fsdpd_job=\"a-1\",cause=\"other\"} 5");
  clock_.StepWall(absl::Hours(24));
  ExpectLine("fsdpd_job_seconds{fsdpd_job=\"a-1\",cause=\"other\"} 5");
}

TEST_F(MetricsPageTest, BoundsSeriesWithTenThousandJobs) {
  Show(&page_);
  v1::Job job;
  for (int i = 0; i < 10'000; ++i) {
    job.set_id(absl::StrCat("a-", i));
    job.set_state(i < 2'000 ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_QUEUED);
    job.set_attempt(i < 2'000 ? 1 : 0);
    job.set_create_unix_nanos(i + 1);
    board_->Publish(job);
  }
  size_t series = 0;
  std::set<std::string> listed;
  for (const prometheus::MetricFamily& family : page_.Collect()) {
    series += family.metric.size();
    for (const prometheus::ClientMetric& metric : family.metric) {
      for (const auto& label : metric.label) {
        if (label.name == "fsdpd_job") listed.insert(label.value);
      }
    }
  }
  EXPECT_LT(series, kMaxListedJobs * 13 + 450);
  EXPECT_EQ(listed.size(), kMaxListedJobs);
  EXPECT_EQ(listed.count("a-0"), 1u) << "the oldest";
  ExpectLine(absl::StrCat("fsdpd_unlisted_jobs ", 2'000 - kMaxListedJobs));
}

TEST_F(MetricsPageTest, ExportsExactlyTheTable) {
  page_.ExportFiles([] {
    return std::vector<MetricsPage::FileState>{{"--tls-cert", false, absl::FromUnixSeconds(1)}};
  });
  Show(&page_);
  Attach("a", 1);
  ASSERT_TRUE(reconciler_->Cordon("a", "").ok());
  page_.meters()->Called("GetJob", absl::StatusCode::kOk, absl::Milliseconds(1));
  page_.meters()->Opened("WatchJob");
  page_.meters()->Closed("WatchJob", absl::StatusCode::kOk);
  page_.meters()->Refused("global_batch_divisible");
  page_.meters()->Stored("Get", absl::StatusCode::kOk, absl::Milliseconds(1));
  v1::Job job;
  job.set_id("a-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_attempt(1);
  job.add_slowest_ranks()->set_score(1.5);
  job.add_failed_attempts()->set_cause(v1::FAILURE_CAUSE_HANG);
  *job.mutable_resolved() = TinySpec();
  job.mutable_last_step()->set_step_seconds(0.5);
  board_->Publish(job);
  page_.Collect();
  page_.AwaitPredictions();
  std::multiset<std::string> exported, rows;
  for (const prometheus::MetricFamily& family : page_.Collect()) {
    if (!family.metric.empty()) exported.insert(family.name);
  }
  for (const Metric& metric : CoordinatorMetrics()) rows.insert(metric.name);
  for (const Metric& metric : ProcessMetrics()) rows.insert(metric.name);
  EXPECT_EQ(exported, rows);
}

}  // namespace
}  // namespace fsdpd
