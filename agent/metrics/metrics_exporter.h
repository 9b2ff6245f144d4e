// /metrics of this agent: the series of its ranks and of the agent itself. It owns the lifetime of series:
// they appear with the rank and remain for kSeriesLinger after the last rank of the job on this node has
// ended, so that the final values are scraped; then they are dropped, whether anything scrapes or not. At
// most kMaxEndedJobs ended jobs remain, the newest ones, so a node that has run a thousand jobs does not
// export all of them.
//
// Thread-safe; scrapes arrive on the thread of the server (metrics_server.h).
#pragma once

#include <absl/time/time.h>
#include <prometheus/metric_family.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/launch/attempt.h"
#include "agent/metrics/rank_series.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace fsdpd {

constexpr absl::Duration kSeriesLinger = absl::Minutes(5);
constexpr size_t kMaxEndedJobs = 16;  // Many jobs of a few seconds usually come from one script.

class MetricsExporter {
 public:
  // `clock` must outlive the exporter.
  MetricsExporter(std::string node, int slots, Clock* clock);

  void RankLaunched(const RankId& id, const std::string& device);
  void RankPlanned(const RankId& id, const v1::MemoryPlan& plan) {
    Update(id, [&](RankSeries* series) { series->SetPlan(plan); });
  }
  void RankReady(const RankId& id, int64_t steps) {  // `steps`: of the job.
    Update(id, [&](RankSeries* series) { series->SetGoal(steps); });
  }
  void RankStepped(const RankId& id, int world, const v1::StepReport& report) {
    Update(id, [&](RankSeries* series) { series->Add(report, world); });
  }
  void RankTimeline(const RankId& id, const v1::StepTimeline& timeline) {
    Update(id, [&](RankSeries* series) { series->Add(timeline); });
  }
  void RankSaves(const RankId& id) {  // The job has checkpoints.
    Update(id, [](RankSeries* series) { series->SetSaves(); });
  }
  void RankRoundsToFp8(const RankId& id) {
    Update(id, [](RankSeries* series) { series->SetRoundsToFp8(); });
  }
  void CheckpointSaved(const RankId& id, const v1::SavedCheckpoint& saved) {
    Update(id, [&](RankSeries* series) { series->Add(saved); });
  }
  // `by`: the bad step at which it ended; null if there was none.
  void RankEnded(const RankId& id, bool failed, const v1::BadStep* by = nullptr);
  void SetConnected(bool connected) { connected_ = connected; }
  void AddLogLoss(absl::Duration time);
  void AddUnrecordedStep() { ++unrecorded_steps_; }
  void AddInternalError() { ++internal_errors_; }
  void AddHang() { ++hangs_; }
  void AddFailure(v1::ErrorClass::Kind fault);  // A rank failed on its own, not because of a peer or a stop.
  // A TLS file, which is read again when the agent connects.
  struct FileState {
    bool stale = false;                   // The file is invalid; the previous version is in use.
    std::optional<absl::Time> not_after;  // Expiry of the certificate in it.
  };
  // `read` returns the files by flag; it is called now and at each scrape. The last known expiry is exported
  // if a file no longer has a certificate. REQUIRES: no scrape was started.
  void WatchFiles(std::function<std::map<std::string, FileState>()> read);

  std::vector<prometheus::MetricFamily> Collect() const;

 private:
  struct Job {
    std::map<int, RankSeries> ranks;  // By rank number, of the newest attempt.
    int live_ranks = 0;
    int attempt = 0;
    absl::Time ended;  // When live_ranks became 0.
  };
  template <typename Change>
  void Update(const RankId& id, const Change& change) {
    MutexLock lock(&mutex_);
    if (RankSeries* const series = Find(id)) change(series);
  }
  RankSeries* Find(const RankId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddFiles(MetricSamples* samples) const;

  const std::string node_;
  const int slots_;
  Clock* const clock_;
  std::atomic<bool> connected_{false};
  std::atomic<int64_t> unrecorded_steps_{0}, internal_errors_{0}, hangs_{0};
  mutable Mutex mutex_;
  // Mutable: a scrape drops ended jobs too.
  mutable std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  absl::Duration log_loss_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> failures_ ABSL_GUARDED_BY(mutex_);  // By cause.
  std::function<std::map<std::string, FileState>()> read_files_;
  mutable std::map<std::string, absl::Time> expiries_ ABSL_GUARDED_BY(mutex_);  // By the file's flag.
};

}  // namespace fsdpd
