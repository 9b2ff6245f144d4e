// /metrics endpoint of the coordinator. It lives as long as the process and exports the meters. While this
// coordinator leads it also exports current jobs, agents and slots. It reads these from the board and the
// registry like an API reader, so a scrape blocks the reconciler only briefly: some milliseconds with 10,000
// jobs and 2,000 agents.
//
// Series are bounded: only launched jobs that have not ended have series of their own, and of these the
// oldest kMaxListedJobs.
//
// Thread-safe. Show() at the start of a term, Hide() at its end; the pointers given to Show() are not read
// after Hide() has returned.
#pragma once

#include <absl/status/statusor.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/metrics_server.h"
#include "base/mutex.h"
#include "base/tls_files.h"
#include "coordinator/audit_log.h"
#include "coordinator/job_predictions.h"
#include "coordinator/job_watch.h"
#include "coordinator/meters.h"
#include "coordinator/node_registry.h"
#include "coordinator/reconciler.h"
#include "coordinator/revoked_certificates.h"

namespace fsdpd {

constexpr size_t kMaxListedJobs = 256;  // Each has 13 causes, a rank and predictions.

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

  // A file that the coordinator rereads while it runs, named by its flag.
  struct FileState {
    std::string flag;    // "--tokens"
    bool stale = false;  // Whether the file was rejected, so that an older version is in use.
    absl::Time not_after = absl::InfiniteFuture();  // Of the certificate in use, if the file holds one.
  };
  using ReadFiles = std::function<std::vector<FileState>()>;

  // `revoked`, `audit`: null without --revoked-certs, --audit-log.
  explicit MetricsPage(Clock* clock, std::shared_ptr<RevokedCertificates> revoked = nullptr,
                       std::shared_ptr<const AuditLog> audit = nullptr)
      : clock_(clock), revoked_(std::move(revoked)), audit_(std::move(audit)) {}

  // Reads the files on each scrape. `read` may outlive the caller.
  void ExportFiles(ReadFiles read);

  // Serves on `listen` (HOST:PORT). Errors are those of MetricsServer::Start. Call at most once.
  absl::Status Serve(const std::string& listen);
  std::string endpoint() const { return server_ == nullptr ? "" : server_->endpoint(); }
  Meters* meters() { return &meters_; }

  void Show(const Lead& lead);
  void Hide();

  std::vector<prometheus::MetricFamily> Collect();
  // Blocks until the predictions for the jobs of the last Collect() are known.
  void AwaitPredictions() { predictions_.AwaitAll(); }

 private:
  std::optional<double> StateBytes();
  void AddFiles(std::vector<prometheus::MetricFamily>* families);
  void AddJobs(std::vector<prometheus::MetricFamily>* families) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `jobs`: the jobs with series of their own.
  void AddListed(const JobPredictions::Jobs& jobs, std::vector<prometheus::MetricFamily>* families)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPredictions(const JobPredictions::Jobs& jobs, std::vector<prometheus::MetricFamily>* families)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Call after AddNodes(), which reads the nodes.
  void AddCordoned(std::vector<prometheus::MetricFamily>* families) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddNodes(std::vector<prometheus::MetricFamily>* families) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const std::shared_ptr<RevokedCertificates> revoked_;
  const std::shared_ptr<const AuditLog> audit_;
  Meters meters_;
  JobPredictions predictions_;
  Mutex mutex_;
  std::vector<ReadFiles> files_ ABSL_GUARDED_BY(mutex_);
  std::optional<Lead> lead_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, NodeView> views_ ABSL_GUARDED_BY(mutex_);  // As of the last scrape.
  std::unique_ptr<MetricsServer> server_;                          // Last: its thread uses the rest.
};

// Returns the states of the given files; `flags` has each file's flag instead of its path. `error`: why the
// files cannot be used, naming one of them; "" if they can.
std::vector<MetricsPage::FileState> TlsFileStates(const TlsFiles& flags, const TlsFiles& files,
                                                  const std::string& error, absl::Time not_after,
                                                  absl::Time trusted_not_after);

}  // namespace fsdpd
