// /metrics of this coordinator, as long as its process lives: the counters of its meters and, while it is the
// leader, the current jobs, agents and slots. A scrape blocks the reconciler as long as a read of the API:
// some milliseconds with ten thousand jobs and two thousand agents.
//
// The number of series is bounded: only launched jobs that have not ended have their own series, and of these
// the oldest kMaxListedJobs.
//
// Thread-safe. Call Show() when the coordinator becomes the leader, and Hide() when it loses the leadership.
// The objects passed to Show() are not read after Hide() has returned.
#pragma once

#include <absl/status/status.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/net/metrics_server.h"
#include "base/net/tls_files.h"
#include "base/process/metric.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/revoked_certificates.h"
#include "coordinator/job/job_predictions.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/reconcile/reconciler.h"

namespace fsdpd {

constexpr size_t kMaxListedJobs = 256;  // Each has 13 causes, a slowest rank and a prediction.

class EventLog;

class MetricsPage {
 public:
  struct Lead {
    const JobBoard* board;
    const NodeRegistry* nodes;
    const Reconciler* reconciler;
    const EventLog* events;
    std::string state_dir;  // Empty if the state is in etcd.
    int64_t generation;
  };

  // A file that the coordinator reads again while it runs.
  struct FileState {
    std::string flag;                               // The flag with its path: "--tokens".
    bool stale = false;                             // The file is invalid; the previous version is in use.
    absl::Time not_after = absl::InfiniteFuture();  // Expiry of the certificate in use, if it has one.
  };
  using ReadFiles = std::function<std::vector<FileState>()>;

  // `revoked` is null without --revoked-certs, `audit` without --audit-log.
  explicit MetricsPage(Clock* clock, std::shared_ptr<RevokedCertificates> revoked = nullptr,
                       std::shared_ptr<const AuditLog> audit = nullptr)
      : clock_(clock), revoked_(std::move(revoked)), audit_(std::move(audit)) {}

  // Adds files to export; each scrape calls `read`, which may outlive the caller.
  void ExportFiles(ReadFiles read);

  // Starts the server on `listen` (HOST:PORT). Errors of MetricsServer::Start. Called at most once.
  absl::Status Serve(const std::string& listen);
  std::string endpoint() const { return server_ == nullptr ? "" : server_->endpoint(); }
  Meters* meters() { return &meters_; }

  void Show(const Lead& lead);
  void Hide();

  std::vector<prometheus::MetricFamily> Collect();
  // Blocks until the predictions of the jobs in the last Collect() are known. For tests.
  void AwaitPredictions() { predictions_.AwaitAll(); }

 private:
  std::optional<double> StateBytes();
  void AddFiles(MetricSamples* samples);
  void AddJobs(MetricSamples* samples) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void AddListed(const v1::Job& job, absl::Time now, const LabeledSamples& add);
  static void AddPrediction(const v1::Job& job, const v1::Prediction& step, const LabeledSamples& add);
  // REQUIRES: AddNodes() was called; it updates views_.
  void AddCordoned(MetricSamples* samples) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddNodes(MetricSamples* samples) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const std::shared_ptr<RevokedCertificates> revoked_;
  const std::shared_ptr<const AuditLog> audit_;
  Meters meters_;
  JobPredictions predictions_;
  Mutex mutex_;
  std::vector<ReadFiles> files_ ABSL_GUARDED_BY(mutex_);
  std::optional<Lead> lead_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, NodeView> views_ ABSL_GUARDED_BY(mutex_);  // Updated by each scrape.
  std::unique_ptr<MetricsServer> server_;                          // Last: its thread uses the rest.
};

// States of the configured TLS files. `flags` has the flag of each file in place of its path. `fault` is the
// error of the one file that cannot be used, or ""; only that file is stale.
std::vector<MetricsPage::FileState> TlsFileStates(const TlsFiles& flags, const TlsFiles& files,
                                                  const std::string& error, absl::Time not_after,
                                                  absl::Time trusted_not_after);

}  // namespace fsdpd
