#include "agent/metrics/metrics_exporter.h"

#include <algorithm>

#include "agent/metrics/agent_metrics.h"
#include "base/lookup.h"
#include "base/process/process_metrics.h"
#include "base/version.h"

namespace fsdpd {
namespace {

using prometheus::MetricFamily;

// Names match FailureCause of the coordinator. Kinds of newer ranks count as "process".
constexpr char kProcess[] = "process";
constexpr std::pair<v1::ErrorClass::Kind, const char*> kCauses[] = {
    {v1::ErrorClass::KIND_CONFIGURATION, "configuration"},
    {v1::ErrorClass::KIND_DATA, "data"},
    {v1::ErrorClass::KIND_NODE, "node"},
    {v1::ErrorClass::KIND_DISK, "disk"}};

}  // namespace

MetricsExporter::MetricsExporter(std::string node, int slots, Clock* clock)
    : node_(std::move(node)), slots_(slots), clock_(clock) {
  // Export zeros from the start, so that rate() sees the first failure.
  failures_[kProcess] = 0;
  for (const auto& [kind, cause] : kCauses) failures_[cause] = 0;
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

void MetricsExporter::RankEnded(const RankId& id, bool failed, const v1::BadStep* by) {
  MutexLock lock(&mutex_);
  RankSeries* series = Find(id);
  if (series == nullptr) return;
  if (by != nullptr) series->Add(*by);
  series->End(failed);
  Job& job = jobs_[id.of.job_id];
  if (--job.live_ranks == 0) job.ended = clock_->Now();
}

void MetricsExporter::AddLogLoss(absl::Duration time) {
  MutexLock lock(&mutex_);
  log_loss_ += time;
}

void MetricsExporter::AddFailure(v1::ErrorClass::Kind fault) {
  MutexLock lock(&mutex_);
  ++failures_[Lookup(kCauses, fault, kProcess)];
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
  MetricSamples unused(AgentMetrics());
  AddFiles(&unused);
}

void MetricsExporter::AddFiles(MetricSamples* samples) const {
  if (!read_files_) return;
  // Without holding the lock: the disk may be slow.
  const std::map<std::string, FileState> files = read_files_();
  MutexLock lock(&mutex_);
  for (const auto& [flag, file] : files) {
    samples->Add("fsdpd_agent_file_stale", file.stale, {{"file", flag}});
    if (file.not_after.has_value()) expiries_[flag] = *file.not_after;
  }
  for (const auto& [flag, expiry] : expiries_)
    samples->Add("fsdpd_agent_certificate_expiry_timestamp_seconds", absl::ToUnixSeconds(expiry),
                 {{"file", flag}});
}

std::vector<MetricFamily> MetricsExporter::Collect() const {
  std::vector<MetricFamily> families;
  AddProcessMetrics(&families);
  MetricSamples samples(AgentMetrics());
  AddFiles(&samples);
  MutexLock lock(&mutex_);
  DropEnded();
  int live_ranks = 0;
  for (const auto& [id, job] : jobs_) {
    for (const auto& [number, rank] : job.ranks) rank.AddTo(&samples);
    live_ranks += job.live_ranks;
    samples.Add("fsdpd_restarts_total", std::max(0, job.attempt - 1), {{kJobLabel, id}});
  }
  samples.Add("fsdpd_agent_slots", slots_);
  samples.Add("fsdpd_agent_ranks", live_ranks);
  samples.Add("fsdpd_agent_connected", connected_.load());
  samples.Add("fsdpd_log_loss_seconds_total", absl::ToDoubleSeconds(log_loss_));
  samples.Add("fsdpd_unrecorded_steps_total", unrecorded_steps_.load());
  samples.Add("fsdpd_agent_internal_errors_total", internal_errors_.load());
  samples.Add("fsdpd_hangs_total", hangs_.load());
  for (const auto& [cause, count] : failures_)
    samples.Add("fsdpd_rank_failures_total", count, {{"cause", cause}});
  samples.Add("fsdpd_build_info", 1, {{"version", kVersion}});
  samples.MoveTo(&families);
  return families;
}

}  // namespace fsdpd
