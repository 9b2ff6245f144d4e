// The coordinator's /metrics, for as long as its process lives: what meters have counted, and, while it
// leads, what is there now: jobs, agents, slots. What is there is read from the board and the registry, as
// readers of the API do: the thread that changes jobs waits for a scrape as long as for one of these, some
// milliseconds with ten thousand jobs and two thousand agents.
//
// Series are bounded: of jobs alone those have their own that are launched and have not ended, the oldest
// kMaxListedJobs.
//
// Thread-safe. Show() ... Hide() by who leads; what Show() was given is not read after Hide() has returned.
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

constexpr size_t kMaxListedJobs = 256;  // With 13 causes, a rank and what was predicted each.

class EventLog;

class MetricsPage {
 public:
  struct Lead {
    const JobBoard* board;
    const NodeRegistry* nodes;
    const Reconciler* reconciler;
    const EventLog* events;
    std::string state_dir;  // Empty where etcd has the state.
    int64_t generation;
  };

  // A file that the coordinator rereads while it runs, by the flag that names it.
  struct FileState {
    std::string flag;    // "--tokens"
    bool stale = false;  // Whether what is in use is older than the file, which was refused.
    absl::Time not_after = absl::InfiniteFuture();  // Of the certificate in use, where the file holds one.
  };
  using ReadFiles = std::function<std::vector<FileState>()>;

  // `revoked`, `audit`: null without --revoked-certs, --audit-log.
  explicit MetricsPage(Clock* clock, std::shared_ptr<RevokedCertificates> revoked = nullptr,
                       std::shared_ptr<const AuditLog> audit = nullptr)
      : clock_(clock), revoked_(std::move(revoked)), audit_(std::move(audit)) {}

  // Each scrape reads the files. `read` may outlive the caller.
  void ExportFiles(ReadFiles read);

  // `listen` is HOST:PORT; errors of MetricsServer::Start. Once at most.
  absl::Status Serve(const std::string& listen);
  std::string endpoint() const { return server_ == nullptr ? "" : server_->endpoint(); }
  Meters* meters() { return &meters_; }

  void Show(const Lead& lead);
  void Hide();

  std::vector<prometheus::MetricFamily> Collect();
  // Until what jobs of the last Collect() were predicted to take is known.
  void AwaitPredictions() { predictions_.AwaitAll(); }

 private:
  std::optional<double> StateBytes();
  void AddFiles(std::vector<prometheus::MetricFamily>* families);
  void AddJobs(std::vector<prometheus::MetricFamily>* families) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `jobs`: those that are listed.
  void AddListed(const JobPredictions::Jobs& jobs, std::vector<prometheus::MetricFamily>* families)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPredictions(const JobPredictions::Jobs& jobs, std::vector<prometheus::MetricFamily>* families)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After AddNodes(), which reads the nodes.
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

// The states of the files that are given; `flags` has the flag of each as the path. `fault`: why the files
// cannot be used, which is about one of them; "" where they can.
std::vector<MetricsPage::FileState> TlsFileStates(const TlsFiles& flags, const TlsFiles& files,
                                                  const std::string& fault, absl::Time not_after,
                                                  absl::Time trusted_not_after);

}  // namespace fsdpd
