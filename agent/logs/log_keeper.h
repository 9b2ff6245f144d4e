// Logs of the ranks on this node: WORK_DIR/JOB_ID/attempt-N/rank-R.log. Owns the paths of the files and
// serves reads: the tail for a failure report, whole logs, the last lines, and following a log that is being
// written. Traces (base/rank/trace_file.h), hang evidence (hang_evidence.h) and step records (step_records.h)
// use the same requests, one file after the other.
//
// Ranks write to their files directly, so a slow reader or a dead agent does not block a rank. A full or
// failing disk loses log lines but never stops a rank: if the file cannot be opened, the rank writes to
// /dev/null. Readers get a notice about lost output (log_loss.h), about lines that were dropped at the size
// limit (log_bound.h), about a truncation, and in place of a file that was removed to stay within --work-mib
// (removed_files.h).
//
//   OpenForRank at launch, RankEnded when no process can write any more, which ends a follow.
//   Read answers through `deliver` on a thread of this object. Grant extends the window of a request.
//   DropAll when the stream is lost: requests from before it are not served after it.
//
// A request with a window is served until the window is used up, and continues with each Grant; its ranks
// take turns. A file that cannot be read ends the request with an error.
//
// Thread-safe. `deliver` may block, and returns false if the stream has ended, which ends the request.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/launch/attempt.h"
#include "agent/logs/log_bound.h"
#include "agent/logs/log_loss.h"
#include "agent/logs/step_records.h"
#include "agent/ranks/internal_errors.h"
#include "agent/ranks/rank_logs.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class LogKeeper : public RankLogs {
 public:
  using Deliver = std::function<bool(v1::LogLines)>;

  // `lost` is called with the time in which logs were lost, as it passes. `steps`: null if steps are not
  // recorded.
  LogKeeper(std::string work_dir, Deliver deliver, std::function<void(absl::Duration)> lost = nullptr,
            StepRecords* steps = nullptr, int64_t max_log_bytes = kMaxLogBytes,
            InternalErrors errors = InternalErrors());
  ~LogKeeper() override;  // Ends all requests.

  // Creates the work directory, checks that it is writable, and locks it for as long as the returned
  // descriptor is open: two agents would write to the same logs. FAILED_PRECONDITION names the process that
  // holds the lock.
  static absl::StatusOr<UniqueFd> Prepare(const std::string& work_dir);

  std::string PathOf(const RankId& id) const override;
  std::string DirectoryOf(const AttemptId& id) const override;
  absl::StatusOr<UniqueFd> OpenForRank(const RankId& id) override;
  void RankEnded(const RankId& id) override;
  void AddNotice(const RankId& id, const std::string& words) override;
  std::vector<std::string> Tail(const RankId& id, int lines) const override;

  void Read(const v1::ReadLogs& ask);
  void Grant(const v1::LogGrant& grant);  // No-op for a request that has ended.
  void DropAll();

 private:
  struct LogFile;  // Read state of one file.
  struct Request;  // Read state of one ReadLogs request.

  void Serve();
  bool Admit(bool idle);
  absl::Status Begin(const v1::ReadLogs& ask, int64_t drops);
  absl::StatusOr<std::shared_ptr<Request>> Open(const v1::ReadLogs& ask) const;
  bool ServeOnce(Request* request, bool* progress, bool* done);
  void AddRemoved(Request* request, absl::string_view what, absl::string_view suffix) const;
  absl::Status FindLogs(Request* request) const;
  absl::Status FindTraces(Request* request) const;
  absl::Status FindSteps(Request* request) const;
  absl::Status FindEvidence(Request* request) const;
  static absl::Status OpenWhole(LogFile* file);
  absl::Status ReadMore(Request* request, LogFile* file);
  bool SkipDropped(LogFile* file) const;
  static bool WasRewritten(const LogFile& file);
  static void RestartAfterTruncation(LogFile* file);
  v1::LogLines NextLines(Request* request, LogFile* file);
  bool IsLive(const RankId& id) const;
  void Fail(int64_t request, const absl::Status& why);

  const std::string work_dir_;
  const Deliver deliver_;
  StepRecords* const steps_;
  const InternalErrors errors_;
  LogLoss loss_;
  LogBound bound_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<RankId> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ReadLogs> asked_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::LogGrant> granted_ ABSL_GUARDED_BY(mutex_);
  // Calls of DropAll(): requests from before one are not started.
  int64_t drops_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::shared_ptr<Request>> requests_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
