#include "agent/metrics/metrics_exporter.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "agent/metrics/metrics.h"
#include "base/process/metric.h"
#include "base/process/process_metrics.h"
#include "base/version.h"

namespace fsdpd {
namespace {

using prometheus::MetricFamily;

MetricFamily Family(const char* name) { return FamilyOf(AgentMetrics(), name); }

MetricFamily Single(const char* name, double value, MetricLabels labels = {}) {
  MetricFamily family = Family(name);
  AddSample(&family, std::move(labels), value);
  return family;
}

// Names match FailureCause of the coordinator. Kinds of newer ranks count as "process".
const char* CauseOf(v1::ErrorClass::Kind fault) {
  switch (fault) {
    case v1::ErrorClass::KIND_CONFIGURATION:
      return "configuration";
    case v1::ErrorClass::KIND_DATA:
      return "data";
    case v1::ErrorClass::KIND_NODE:
      return "node";
    case v1::ErrorClass::KIND_DISK:
      return "disk";
    default:
      return "process";
  }
}

}  // namespace

MetricsExporter::MetricsExporter(std::string node, int slots, Clock* clock)
    : node_(std::move(node)), slots_(slots), clock_(clock) {
  // Export zeros from the start, so that rate() sees the first failure.
  for (const auto fault : {v1::ErrorClass::KIND_UNSPECIFIED, v1::ErrorClass::KIND_CONFIGURATION,
                           v1::ErrorClass::KIND_DATA, v1::ErrorClass::KIND_NODE, v1::ErrorClass::KIND_DISK})
    failures_[CauseOf(fault)] = 0;
}

void MetricsExporter::RankLaunched(const RankId& id, const std::string& device) {
  MutexLock lock(&mutex_);
  Job& job = jobs_[id.of.job_id];
  if (job.attempt != id.of.attempt) {  // A new attempt: its counters start at zero.
    job.attempt = id.of.attempt;
    job.live_ranks = 0;
    job.ranks.clear();
  }
  job.ranks.insert_or_assign(id.rank, RankSeries(id, node_, device));
  ++job.live_ranks;
  DropEnded();
}

RankSeries* MetricsExporter::Find(const RankId& id) {
  const auto job = jobs_.find(id.of.job_id);
  if (job == jobs_.end() || job->second.attempt != id.of.attempt) return nullptr;
  const auto rank = job->second.ranks.find(id.rank);
  return rank == job->second.ranks.end() ? nullptr : &rank->second;
}

void MetricsExporter::RankPlanned(const RankId& id, const v1::MemoryPlan& plan, int64_t steps) {
  MutexLock lock(&mutex_);
  RankSeries* series = Find(id);
  if (series == nullptr) return;
  series->SetPlan(plan);
  series->SetGoal(steps);
}

void MetricsExporter::RankStepped(const RankId& id, int world, const v1::StepReport& report) {
  MutexLock lock(&mutex_);
  if (RankSeries* series = Find(id)) series->Add(report, world);
}

void MetricsExporter::RankTimeline(const RankId& id, const v1::StepTimeline& timeline) {
  MutexLock lock(&mutex_);
  if (RankSeries* series = Find(id)) series->Add(timeline);
}

void MetricsExporter::RankSaves(const RankId& id) {
  MutexLock lock(&mutex_);
  if (RankSeries* series = Find(id)) series->SetSaves();
}

void MetricsExporter::RankRoundsToFp8(const RankId& id) {
  MutexLock lock(&mutex_);
  if (RankSeries* series = Find(id)) series->SetRoundsToFp8();
}

void MetricsExporter::CheckpointSaved(const RankId& id, const v1::SavedCheckpoint& saved) {
  MutexLock lock(&mutex_);
  if (RankSeries* series = Find(id)) series->Add(saved);
}

void MetricsExporter::RankEnded(const RankId& id, bool failed, const v1::BadStep* by) {
  MutexLock lock(&mutex_);
  RankSeries* series = Find(id);
  if (series == nullptr) return;
  if (by != nullptr) series->Add(*by);
  series->End(failed);
  Job& job = jobs_[id.of.job_id];
  if (--job.live_ranks == 0) job.ended = clock_->Now();
}

void MetricsExporter::SetConnected(bool connected) {
  MutexLock lock(&mutex_);
  connected_ = connected;
}

void MetricsExporter::AddLogLoss(absl::Duration time) {
  MutexLock lock(&mutex_);
  log_loss_ += time;
}

void MetricsExporter::AddUnrecordedStep() {
  MutexLock lock(&mutex_);
  ++unrecorded_steps_;
}

void MetricsExporter::AddInternalError() {
  MutexLock lock(&mutex_);
  ++internal_errors_;
}

void MetricsExporter::AddHang() {
  MutexLock lock(&mutex_);
  ++hangs_;
}

void MetricsExporter::AddFailure(v1::ErrorClass::Kind fault) {
  MutexLock lock(&mutex_);
  ++failures_[CauseOf(fault)];
}

void MetricsExporter::DropEnded() const {
  absl::Time drop_before = clock_->Now() - kSeriesLinger;
  std::vector<absl::Time> ended;
  for (const auto& [id, job] : jobs_) {
    if (job.live_ranks == 0) ended.push_back(job.ended);
  }
  if (ended.size() > kMaxEndedJobs) {
    std::nth_element(ended.begin(), ended.begin() + kMaxEndedJobs, ended.end(), std::greater<>());
    drop_before = std::max(drop_before, ended[kMaxEndedJobs]);
  }
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const Job& job = it->second;
    it = job.live_ranks == 0 && job.ended <= drop_before ? jobs_.erase(it) : std::next(it);
  }
}

void MetricsExporter::WatchFiles(std::function<std::map<std::string, FileState>()> read) {
  read_files_ = std::move(read);
  std::vector<MetricFamily> unused;
  AddFiles(&unused);
}

void MetricsExporter::AddFiles(std::vector<MetricFamily>* families) const {
  if (!read_files_) return;
  // Without holding the lock: the disk may be slow.
  const std::map<std::string, FileState> files = read_files_();
  MetricFamily stale = Family("fsdpd_agent_file_stale");
  MetricFamily expiries = Family("fsdpd_agent_certificate_expiry_timestamp_seconds");
  MutexLock lock(&mutex_);
  for (const auto& [flag, file] : files) {
    AddSample(&stale, {{"file", flag}}, file.stale ? 1 : 0);
    if (file.not_after.has_value()) expiries_[flag] = *file.not_after;
  }
  for (const auto& [flag, expiry] : expiries_)
    AddSample(&expiries, {{"file", flag}}, static_cast<double>(absl::ToUnixSeconds(expiry)));
  for (MetricFamily* family : {&stale, &expiries}) families->push_back(std::move(*family));
}

std::vector<MetricFamily> MetricsExporter::Collect() const {
  std::vector<MetricFamily> families;
  AddProcessMetrics(&families);
  AddFiles(&families);
  MutexLock lock(&mutex_);
  DropEnded();
  std::vector<const RankSeries*> series;
  int live_ranks = 0;
  MetricFamily restarts = Family("fsdpd_restarts_total");
  for (const auto& [id, job] : jobs_) {
    for (const auto& [number, rank] : job.ranks) series.push_back(&rank);
    live_ranks += job.live_ranks;
    AddSample(&restarts, {{kJobLabel, id}}, std::max(0, job.attempt - 1));
  }
  for (MetricFamily& family : CollectSeries(series)) families.push_back(std::move(family));
  if (!restarts.metric.empty()) families.push_back(std::move(restarts));
  families.push_back(Single("fsdpd_agent_slots", slots_));
  families.push_back(Single("fsdpd_agent_ranks", live_ranks));
  families.push_back(Single("fsdpd_agent_connected", connected_));
  families.push_back(Single("fsdpd_log_loss_seconds_total", absl::ToDoubleSeconds(log_loss_)));
  families.push_back(Single("fsdpd_unrecorded_steps_total", static_cast<double>(unrecorded_steps_)));
  families.push_back(Single("fsdpd_agent_internal_errors_total", static_cast<double>(internal_errors_)));
  families.push_back(Single("fsdpd_hangs_total", static_cast<double>(hangs_)));
  MetricFamily failures = Family("fsdpd_rank_failures_total");
  for (const auto& [cause, count] : failures_) {
    AddSample(&failures, {{"cause", cause}}, static_cast<double>(count));
  }
  families.push_back(std::move(failures));
  families.push_back(Single("fsdpd_build_info", 1, {{"version", kVersion}}));
  return families;
}

}  // namespace fsdpd
