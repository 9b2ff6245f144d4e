#include "agent/metrics/metrics_exporter.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <set>
#include <string>

#include "agent/metrics/agent_metrics.h"
#include "base/process/process_metrics.h"

namespace fsdpd {
namespace {

const RankId kFirst{{"job", 1}, 0};
const RankId kSecond{{"job", 1}, 1};

v1::StepReport Step(double seconds) {
  v1::StepReport report;
  report.set_step_seconds(seconds);
  report.set_tokens(100);
  report.set_loss(2.5);
  report.mutable_memory()->set_device_mallocs(9);
  v1::OpTime* op = report.add_ops();
  op->set_op(v1::COMM_OP_ALL_REDUCE);
  op->set_seconds(0.5);
  return report;
}

v1::StepReport WithFp8AndExperts(v1::StepReport report) {
  for (const v1::Fp8Class kind : {v1::FP8_CLASS_WEIGHTS, v1::FP8_CLASS_INPUTS, v1::FP8_CLASS_GRADIENTS}) {
    v1::StepReport::Fp8Stats* numbers = report.add_fp8();
    numbers->set_kind(kind);
    numbers->set_values(1000 * kind);
    numbers->set_underflows(10 * kind);
    numbers->set_min_scale(0.25);
    numbers->set_max_scale(4 * kind);
  }
  report.mutable_routing()->set_imbalance(1.5);
  report.mutable_routing()->set_entropy(2);
  report.mutable_routing()->set_balance_loss(1.25);
  report.mutable_routing()->set_z_loss(3);
  return report;
}

class MetricsExporterTest : public testing::Test {
 protected:
  // Series as Prometheus reads them.
  std::set<std::string> Scrape() {
    const std::string text = prometheus::TextSerializer().Serialize(exporter_.Collect());
    std::set<std::string> lines;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      if (text[begin] != '#') lines.insert(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return lines;
  }
  bool Has(const std::string& line) { return Scrape().count(line) == 1; }
  bool Mentions(const std::string& part) {
    for (const std::string& line : Scrape()) {
      if (line.find(part) != std::string::npos) return true;
    }
    return false;
  }

  FakeClock clock_;
  MetricsExporter exporter_{"node-0", 2, &clock_};
};

TEST_F(MetricsExporterTest, CountersStartAtZeroAndGaugesAtTheFirstStep) {
  exporter_.RankLaunched(kFirst, "cpu");
  for (const char* op : {"all_gather", "reduce_scatter", "all_reduce"}) {
    for (const char* name :
         {"fsdpd_comm_seconds_total", "fsdpd_comm_exposed_seconds_total", "fsdpd_comm_bytes_total"}) {
      EXPECT_TRUE(Has(std::string(name) + "{fsdpd_job=\"job\",rank=\"0\",op=\"" + op + "\"} 0"))
          << name << op;
    }
  }
  EXPECT_TRUE(Has("fsdpd_steps_total{fsdpd_job=\"job\",rank=\"0\"} 0"));
  EXPECT_TRUE(Has("fsdpd_restarts_total{fsdpd_job=\"job\"} 0"));
  EXPECT_TRUE(Has("fsdpd_rank_up{fsdpd_job=\"job\",rank=\"0\"} 1"));
  EXPECT_FALSE(Mentions("fsdpd_loss{"));
  exporter_.RankStepped(kFirst, 4, Step(1));
  EXPECT_TRUE(Has("fsdpd_loss{fsdpd_job=\"job\",rank=\"0\"} 2.5"));
}

TEST_F(MetricsExporterTest, ExportsStepsLeftOnlyAtTheEnd) {
  exporter_.RankLaunched(kFirst, "cpu");
  exporter_.RankReady(kFirst, /*steps=*/7);
  EXPECT_FALSE(Mentions("fsdpd_steps_left")) << "it has begun with none";
  v1::StepReport report = Step(1);
  report.set_step(6);  // Resumes after step 4.
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_FALSE(Mentions("fsdpd_steps_left"));
  report.set_step(7);
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_TRUE(Has("fsdpd_steps_left{fsdpd_job=\"job\",rank=\"0\"} 0"));
}

TEST_F(MetricsExporterTest, OptionalSeriesAppearWithTheirFirstValue) {
  exporter_.RankLaunched(kFirst, "cpu");
  v1::StepReport report = Step(1);
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_FALSE(Mentions("fsdpd_validation_loss"));
  EXPECT_FALSE(Mentions("fsdpd_loss_scale"));
  EXPECT_FALSE(Mentions("fsdpd_copy_engines"));
  EXPECT_FALSE(Mentions("op=\"stage\""));
  v1::OpTime* stage = report.add_ops();
  stage->set_op(v1::COMM_OP_STAGE);
  stage->set_seconds(0.5);
  stage->set_bytes(8);
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_TRUE(Has("fsdpd_comm_seconds_total{fsdpd_job=\"job\",rank=\"0\",op=\"stage\"} 0.5"));
  report.set_copy_engines(false);
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_TRUE(Has("fsdpd_copy_engines{fsdpd_job=\"job\",rank=\"0\"} 0"));
  report.set_copy_engines(true);
  report.mutable_evaluation()->set_loss(1.5);
  report.set_loss_scale(1024);
  report.set_skipped(true);
  report.set_exposed_seconds(0.25);
  report.set_data_wait_seconds(0.5);
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_TRUE(Has("fsdpd_copy_engines{fsdpd_job=\"job\",rank=\"0\"} 1"));
  exporter_.RankStepped(kFirst, 4, Step(3));
  EXPECT_TRUE(Has("fsdpd_validation_loss{fsdpd_job=\"job\",rank=\"0\"} 1.5"));
  EXPECT_TRUE(Has("fsdpd_skipped_steps_total{fsdpd_job=\"job\",rank=\"0\"} 1"));
  EXPECT_TRUE(Has("fsdpd_exposed_seconds_total{fsdpd_job=\"job\",rank=\"0\"} 0.25"));
  EXPECT_TRUE(Has("fsdpd_data_wait_seconds_total{fsdpd_job=\"job\",rank=\"0\"} 0.5"));
}

TEST_F(MetricsExporterTest, ExportsCommonValuesForRank0Only) {
  for (const RankId& id : {kFirst, kSecond}) {
    exporter_.RankLaunched(id, "cpu");
    v1::StepReport report = Step(1);
    report.set_learning_rate(0.25);
    exporter_.RankStepped(id, 4, report);
  }
  EXPECT_TRUE(Has("fsdpd_learning_rate{fsdpd_job=\"job\",rank=\"0\"} 0.25"));
  EXPECT_FALSE(Mentions("fsdpd_learning_rate{fsdpd_job=\"job\",rank=\"1\"}"));
}

TEST_F(MetricsExporterTest, ExportsOneSeriesPerMemorySpike) {
  exporter_.RankLaunched(kFirst, "cpu");
  v1::StepReport report = Step(1);
  report.mutable_memory()->set_peak_bytes(1000);
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_FALSE(Mentions("fsdpd_memory_spike_excess_bytes"));
  v1::MemorySpike* const spike = report.mutable_memory()->mutable_spike();
  spike->set_median_bytes(700);
  spike->set_plan_bytes(900);
  for (const char* instruction : {"Forward head mb 0", "Backward layer.3 mb 0"}) {
    spike->set_instruction(instruction);
    exporter_.RankStepped(kFirst, 4, report);
    exporter_.RankStepped(kFirst, 4, Step(1));
  }
  EXPECT_TRUE(
      Has("fsdpd_memory_spike_excess_bytes{fsdpd_job=\"job\",rank=\"0\","
          "instruction=\"Backward layer.3 mb 0\"} 300"));
  EXPECT_FALSE(Mentions("Forward head"));
}

TEST_F(MetricsExporterTest, ComponentsAreOfTheHighestMemorySample) {
  exporter_.RankLaunched(kFirst, "cpu");
  v1::StepTimeline timeline;
  exporter_.RankTimeline(kFirst, timeline);
  EXPECT_FALSE(Mentions("fsdpd_memory_component_bytes")) << "nothing was measured";
  for (const char* name : {"main_params", "activations_and_workspace"}) timeline.add_components(name);
  for (const auto& [main, rest] : {std::pair(100, 700), std::pair(500, 400), std::pair(100, 750)}) {
    v1::StepTimeline::MemorySample* const sample = timeline.add_memory();
    sample->add_bytes(main);
    sample->add_bytes(rest);
  }
  exporter_.RankTimeline(kFirst, timeline);
  const std::string series = "fsdpd_memory_component_bytes{fsdpd_job=\"job\",rank=\"0\",component=";
  EXPECT_TRUE(Has(series + "\"main_params\"} 500"));
  EXPECT_TRUE(Has(series + "\"activations_and_workspace\"} 400"));
}

// Documented in docs/metrics.md (text in docs/metrics.py).
TEST_F(MetricsExporterTest, LimitsSeriesPerRank) {
  const auto series_of = [this](const char* rank) {
    const std::set<std::string> lines = Scrape();
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(std::string("rank=\"") + rank + '"') != std::string::npos;
    });
  };
  v1::MemoryPlan plan;
  for (int i = 0; i < 10; ++i) plan.add_components()->set_name("part " + std::to_string(i));
  v1::StepTimeline timeline;
  for (int i = 0; i < 20; ++i) {
    timeline.add_components("part " + std::to_string(i));
    (i == 0 ? timeline.add_memory() : timeline.mutable_memory(0))->add_bytes(1);
  }
  v1::SavedCheckpoint saved;
  for (const RankId& id : {kFirst, kSecond}) {
    exporter_.RankLaunched(id, "cpu");
    exporter_.RankPlanned(id, plan);
    exporter_.RankReady(id, /*steps=*/7);
    exporter_.RankStepped(id, 2, Step(1));
  }
  exporter_.RankSaves(kFirst);
  exporter_.CheckpointSaved(kFirst, saved);
  exporter_.RankTimeline(kFirst, timeline);
  EXPECT_EQ(series_of("1"), 40);
  EXPECT_EQ(series_of("0"), 40 + 18) << "no evaluation yet";
  v1::StepReport report = Step(1);
  report.mutable_evaluation()->set_loss(1);
  report.mutable_memory()->mutable_spike()->set_instruction("Forward head mb 0");
  report.set_copy_engines(true);
  for (const RankId& id : {kFirst, kSecond}) exporter_.RankStepped(id, 2, report);
  EXPECT_EQ(series_of("1"), 42) << "a spike and copy engines";
  EXPECT_EQ(series_of("0"), 42 + 19);
  report.set_step(7);
  report.set_loss_scale(1024);
  for (const v1::CommOp op : {v1::COMM_OP_OUTER_REDUCE, v1::COMM_OP_OUTER_GATHER}) {
    v1::OpTime* const time = report.add_ops();
    time->set_op(op);
    time->set_bytes(1);
  }
  for (const RankId& id : {kFirst, kSecond}) {
    exporter_.RankStepped(id, 2, report);
    exporter_.RankEnded(id, /*failed=*/true);
  }
  EXPECT_EQ(series_of("1"), 51) << "an outer axis, fp16, the last step and a failure";
  EXPECT_EQ(series_of("0"), 51 + 19);
  exporter_.RankRoundsToFp8(kFirst);
  for (const RankId& rank : {kFirst, kSecond}) exporter_.RankStepped(rank, 4, WithFp8AndExperts(report));
  EXPECT_EQ(series_of("1"), 51);
  EXPECT_EQ(series_of("0"), 51 + 19 + 12 + 4) << "three classes in FP8, and routers";
}

TEST_F(MetricsExporterTest, CountsUnrecordedStepsFromZero) {
  EXPECT_TRUE(Has("fsdpd_unrecorded_steps_total 0"));
  exporter_.AddUnrecordedStep();
  EXPECT_TRUE(Has("fsdpd_unrecorded_steps_total 1"));
}

TEST_F(MetricsExporterTest, CountsInternalErrorsFromZero) {
  EXPECT_TRUE(Has("fsdpd_agent_internal_errors_total 0"));
  exporter_.AddInternalError();
  EXPECT_TRUE(Has("fsdpd_agent_internal_errors_total 1"));
}

TEST_F(MetricsExporterTest, CountsHangsFromZero) {
  EXPECT_TRUE(Has("fsdpd_hangs_total 0"));
  exporter_.AddHang();
  EXPECT_TRUE(Has("fsdpd_hangs_total 1"));
}

TEST_F(MetricsExporterTest, CountsFailuresByCauseFromZero) {
  for (const char* cause : {"process", "configuration", "data", "node", "disk"})
    EXPECT_TRUE(Has("fsdpd_rank_failures_total{cause=\"" + std::string(cause) + "\"} 0")) << cause;
  exporter_.AddFailure(v1::ErrorClass::KIND_DATA);
  exporter_.AddFailure(v1::ErrorClass::KIND_UNSPECIFIED);
  exporter_.AddFailure(static_cast<v1::ErrorClass::Kind>(9));
  EXPECT_TRUE(Has("fsdpd_rank_failures_total{cause=\"data\"} 1"));
  EXPECT_TRUE(Has("fsdpd_rank_failures_total{cause=\"process\"} 2"));
}

TEST_F(MetricsExporterTest, CountsBadStepsByKind) {
  const auto named = [](const std::string& kind, const std::string& value) {
    return "fsdpd_bad_steps_total{fsdpd_job=\"job\",rank=\"0\",kind=\"" + kind + "\"} " + value;
  };
  exporter_.RankLaunched(kFirst, "cpu");
  EXPECT_TRUE(Has(named("nonfinite", "0")));
  v1::StepReport report = Step(1);
  report.mutable_bad_step()->set_kind(v1::BAD_STEP_KIND_SPIKE);
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_TRUE(Has(named("spike", "1")));
  v1::BadStep last;
  last.set_kind(v1::BAD_STEP_KIND_NONFINITE);
  exporter_.RankEnded(kFirst, /*failed=*/true, &last);
  EXPECT_TRUE(Has(named("nonfinite", "1")));
  EXPECT_TRUE(Has(named("spike", "1")));
}

TEST_F(MetricsExporterTest, CountsCheckpointsAndShowsTheNewestCommit) {
  const auto named = [](const std::string& name, const std::string& value) {
    return "fsdpd_checkpoint" + name + "{fsdpd_job=\"job\",rank=\"0\"} " + value;
  };
  exporter_.RankLaunched(kFirst, "cpu");
  exporter_.RankLaunched(kSecond, "cpu");
  EXPECT_FALSE(Mentions("fsdpd_checkpoint")) << "of a job that saves none";
  exporter_.RankSaves(kFirst);
  EXPECT_TRUE(Has(named("s_total", "0")));
  EXPECT_TRUE(Has(named("_failures_total", "0")));
  EXPECT_TRUE(Has(named("_stall_seconds_total", "0")));
  EXPECT_FALSE(Mentions("fsdpd_checkpoint_last_step"));
  v1::SavedCheckpoint saved;
  saved.set_step(200);
  saved.set_bytes(4096);
  saved.set_seconds(3.5);
  saved.set_stall_seconds(0.25);
  saved.set_unix_nanos(1'700'000'000'500'000'000);
  exporter_.CheckpointSaved(kFirst, saved);
  saved.set_step(300);
  saved.set_error("No space left on device");
  saved.set_bytes(0);
  exporter_.CheckpointSaved(kFirst, saved);
  saved.set_format("hf");  // An export does not count as a checkpoint.
  exporter_.CheckpointSaved(kFirst, saved);
  EXPECT_TRUE(Has(named("s_total", "1")));
  EXPECT_TRUE(Has(named("_failures_total", "1")));
  EXPECT_TRUE(Has(named("_stall_seconds_total", "0.5")));
  EXPECT_TRUE(Has(named("_last_step", "200")));
  EXPECT_TRUE(Has(named("_last_success_timestamp_seconds", "1700000000.5")));
  EXPECT_TRUE(Has(named("_seconds", "3.5")));
  EXPECT_TRUE(Has(named("_bytes", "4096")));
  EXPECT_FALSE(Mentions("fsdpd_checkpoints_total{fsdpd_job=\"job\",rank=\"1\"")) << "rank 0's to tell";
}

TEST_F(MetricsExporterTest, SumsStepsAndTokensPerRank) {
  exporter_.RankLaunched(kFirst, "cpu");
  exporter_.RankStepped(kFirst, 4, Step(1));
  v1::StepReport padded = Step(2);
  padded.set_loss_tokens(60);
  exporter_.RankStepped(kFirst, 4, padded);
  EXPECT_TRUE(Has("fsdpd_steps_total{fsdpd_job=\"job\",rank=\"0\"} 2"));
  EXPECT_TRUE(Has("fsdpd_step_seconds_total{fsdpd_job=\"job\",rank=\"0\"} 3"));
  EXPECT_TRUE(Has("fsdpd_step_seconds{fsdpd_job=\"job\",rank=\"0\"} 2"));
  EXPECT_TRUE(Has("fsdpd_tokens_total{fsdpd_job=\"job\",rank=\"0\"} 50"));
  EXPECT_TRUE(Has("fsdpd_loss_tokens_total{fsdpd_job=\"job\",rank=\"0\"} 15"));
  EXPECT_TRUE(Has("fsdpd_comm_seconds_total{fsdpd_job=\"job\",rank=\"0\",op=\"all_reduce\"} 1"));
  EXPECT_TRUE(Has("fsdpd_device_mallocs_total{fsdpd_job=\"job\",rank=\"0\"} 9"))
      << "counted by the rank since its start";
}

TEST_F(MetricsExporterTest, SumsFp8NumbersAndShowsLastRouting) {
  exporter_.RankLaunched(kFirst, "cpu");
  EXPECT_FALSE(Mentions("fsdpd_fp8") || Mentions("fsdpd_router") || Mentions("fsdpd_expert"));
  exporter_.RankRoundsToFp8(kFirst);
  EXPECT_TRUE(Has("fsdpd_fp8_values_total{fsdpd_job=\"job\",rank=\"0\",class=\"inputs\"} 0"));
  EXPECT_TRUE(Has("fsdpd_fp8_underflows_total{fsdpd_job=\"job\",rank=\"0\",class=\"weights\"} 0"));
  EXPECT_FALSE(Mentions("fsdpd_fp8_scale{"));
  v1::StepReport report = WithFp8AndExperts(Step(1));
  exporter_.RankStepped(kFirst, 4, report);
  report.mutable_fp8(2)->set_min_scale(0.125);
  report.mutable_routing()->set_entropy(0.5);
  report.add_fp8()->set_kind(static_cast<v1::Fp8Class>(77));  // From a newer rank.
  exporter_.RankStepped(kFirst, 4, report);
  const std::string rank = "{fsdpd_job=\"job\",rank=\"0\"";
  EXPECT_TRUE(Has("fsdpd_fp8_values_total" + rank + ",class=\"inputs\"} 4000"));
  EXPECT_TRUE(Has("fsdpd_fp8_underflows_total" + rank + ",class=\"gradients\"} 60"));
  EXPECT_TRUE(Has("fsdpd_fp8_scale" + rank + ",class=\"gradients\",bound=\"min\"} 0.125"));
  EXPECT_TRUE(Has("fsdpd_fp8_scale" + rank + ",class=\"weights\",bound=\"max\"} 4"));
  EXPECT_TRUE(Has("fsdpd_expert_imbalance" + rank + "} 1.5"));
  EXPECT_TRUE(Has("fsdpd_router_entropy" + rank + "} 0.5"));
  EXPECT_TRUE(Has("fsdpd_router_balance_loss" + rank + "} 1.25"));
  EXPECT_TRUE(Has("fsdpd_router_z_loss" + rank + "} 3"));
  EXPECT_FALSE(Mentions("fsdpd_expert_capacity_factor{"));
  report.mutable_routing()->set_capacity_factor(1.875);
  exporter_.RankStepped(kFirst, 4, report);
  EXPECT_TRUE(Has("fsdpd_expert_capacity_factor" + rank + "} 1.875"));
}

TEST_F(MetricsExporterTest, IgnoresUnknownOperations) {
  exporter_.RankLaunched(kFirst, "cpu");
  v1::StepReport report = Step(1);
  report.mutable_ops(0)->set_op(static_cast<v1::CommOp>(99));
  exporter_.RankStepped(kFirst, 1, report);
  EXPECT_TRUE(Has("fsdpd_comm_seconds_total{fsdpd_job=\"job\",rank=\"0\",op=\"all_reduce\"} 0"));
}

TEST_F(MetricsExporterTest, DropsSeriesFiveMinutesAfterTheLastRank) {
  exporter_.RankLaunched(kFirst, "cpu");
  exporter_.RankLaunched(kSecond, "cpu");
  exporter_.RankEnded(kFirst, /*failed=*/false);
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(Has("fsdpd_rank_up{fsdpd_job=\"job\",rank=\"0\"} 0")) << "the other rank still runs";
  EXPECT_TRUE(Has("fsdpd_agent_ranks 1"));
  exporter_.RankEnded(kSecond, /*failed=*/false);
  clock_.Advance(kSeriesLinger - absl::Seconds(1));
  EXPECT_TRUE(Mentions("job=\"job\""));
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(Mentions("job=\"job\""));
  EXPECT_TRUE(Has("fsdpd_agent_ranks 0"));
}

TEST_F(MetricsExporterTest, LimitsEndedJobsWithoutScrapes) {
  for (int i = 0; i < 2000; ++i) {
    const RankId id{{"job-" + std::to_string(i), 1}, 0};
    exporter_.RankLaunched(id, "cpu");
    exporter_.RankStepped(id, 1, Step(1));
    exporter_.RankEnded(id, false);
    clock_.Advance(absl::Milliseconds(10));
  }
  exporter_.RankLaunched(kFirst, "cpu");
  std::set<std::string> jobs;
  for (const std::string& line : Scrape()) {
    const std::string label = "fsdpd_job=\"";
    const size_t at = line.find(label);
    if (at == std::string::npos) continue;
    const size_t begin = at + label.size();
    jobs.insert(line.substr(begin, line.find('"', begin) - begin));
  }
  EXPECT_EQ(jobs.size(), kMaxEndedJobs + 1);
  EXPECT_EQ(jobs.count("job-1999"), 1u) << "the newest";
  EXPECT_LE(Scrape().size(), (kMaxEndedJobs + 1) * 40 + 20);
}

TEST_F(MetricsExporterTest, ExportsOnlyMetricsInTheTable) {
  std::set<std::string> rows;
  for (const Metric& row : AgentMetrics()) EXPECT_TRUE(rows.insert(row.name).second) << row.name;
  for (const Metric& row : ProcessMetrics()) EXPECT_TRUE(rows.insert(row.name).second) << row.name;
  exporter_.RankLaunched(kFirst, "cpu");
  exporter_.RankStepped(kFirst, 1, Step(1));
  for (const prometheus::MetricFamily& family : exporter_.Collect())
    EXPECT_EQ(rows.count(family.name), 1u) << family.name;
}

TEST_F(MetricsExporterTest, NewAttemptResetsCountersAndCountsARestart) {
  exporter_.RankLaunched(kFirst, "cpu");
  exporter_.RankStepped(kFirst, 1, Step(1));
  exporter_.RankEnded(kFirst, /*failed=*/false);
  clock_.Advance(kSeriesLinger - absl::Seconds(1));
  const RankId again{{"job", 2}, 0};
  exporter_.RankLaunched(again, "cuda:3");
  exporter_.RankStepped(kFirst, 1, Step(1));  // Late report of the old attempt.
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(Has("fsdpd_steps_total{fsdpd_job=\"job\",rank=\"0\"} 0"));
  EXPECT_TRUE(Has("fsdpd_restarts_total{fsdpd_job=\"job\"} 1"));
  EXPECT_TRUE(
      Has("fsdpd_rank_info{fsdpd_job=\"job\",rank=\"0\",attempt=\"2\",fsdpd_node=\"node-0\",device=\"cuda:"
          "3\"} 1"));
}

TEST_F(MetricsExporterTest, FailedRankIsShownUntilTheNextAttempt) {
  exporter_.RankLaunched(kFirst, "cpu");
  exporter_.RankLaunched(kSecond, "cpu");
  exporter_.RankEnded(kFirst, /*failed=*/true);
  exporter_.RankEnded(kSecond, /*failed=*/false);
  EXPECT_TRUE(Has("fsdpd_rank_failed{fsdpd_job=\"job\",rank=\"0\"} 1"));
  EXPECT_FALSE(Mentions("fsdpd_rank_failed{fsdpd_job=\"job\",rank=\"1\""));
  exporter_.RankLaunched({{"job", 2}, 0}, "cpu");
  EXPECT_FALSE(Mentions("fsdpd_rank_failed"));
}

// Regression: if the file was invalid before the first scrape, the expiry and all other values were missing.
TEST_F(MetricsExporterTest, InvalidCertificateFileIsStaleAndKeepsItsExpiry) {
  const std::string own = "fsdpd_agent_certificate_expiry_timestamp_seconds{file=\"--tls-cert\"} ";
  const std::string stale = "fsdpd_agent_file_stale{file=\"--tls-cert\"} ";
  EXPECT_FALSE(Mentions("{file=")) << "without TLS";
  std::map<std::string, MetricsExporter::FileState> files;
  files["--tls-cert"].not_after = absl::FromUnixSeconds(1'800'000'000);
  files["--coordinator-ca"].not_after = absl::FromUnixSeconds(1'700'000'000);
  exporter_.WatchFiles([&] { return files; });
  files["--tls-cert"] = {true, std::nullopt};
  EXPECT_TRUE(Has(own + "1800000000"));
  EXPECT_TRUE(Has("fsdpd_agent_certificate_expiry_timestamp_seconds{file=\"--coordinator-ca\"} 1700000000"));
  EXPECT_TRUE(Has(stale + "1"));
  EXPECT_TRUE(Has("fsdpd_agent_file_stale{file=\"--coordinator-ca\"} 0"));
  files["--tls-cert"] = {false, absl::FromUnixSeconds(1'900'000'000)};
  EXPECT_TRUE(Has(own + "1900000000"));
  EXPECT_TRUE(Has(stale + "0"));
}

TEST_F(MetricsExporterTest, IgnoresRanksThatWereNotLaunched) {
  exporter_.RankEnded(kFirst, /*failed=*/false);  // Exit of a refused launch.
  exporter_.RankStepped(kFirst, 1, Step(1));
  EXPECT_FALSE(Mentions("job=\"job\""));
  EXPECT_TRUE(Has("fsdpd_agent_connected 0"));
  EXPECT_TRUE(Has("fsdpd_agent_slots 2"));
}

}  // namespace
}  // namespace fsdpd
