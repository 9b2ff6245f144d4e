// Logs of the ranks of this node: WORK_DIR/JOB_ID/attempt-N/rank-R.log. It owns where they are, and reading
// them back: a failure's tail, from the beginning, the last lines, and following what is still written.
// Traces that ranks wrote beside them (base/trace_file.h) and evidence of hangs (hang_evidence.h) are read
// back in the same way, one file after the other, and so is what is kept of a job's steps (step_records.h).
//
// Ranks write to their files themselves, so that neither a slow reader nor a dead agent stands in their way
// and no line is lost between them. A disk that is full or broken costs log lines, never a rank, and readers
// are told (log_loss.h): when a file cannot be opened the rank writes to /dev/null. Of a file that outgrows
// its bound the beginning is dropped (log_bound.h): a reader who is not past it is told how much, and goes on
// behind. After somebody truncates a log, readers get a notice, and then what is new in it: of a part that is
// still there more than its first 4 KiB are delivered again. A notice replaces a log or
// evidence that was removed to stay within --work-mib (removed_files.h).
//
//   OpenForRank at launch, RankEnded when nobody can write any more: that is when a follow ends.
//   Read answers through `deliver`, on a thread of the keeper's own, and Grant lets one with a window go on;
//   DropAll when the asker has gone: nothing that was asked before it begins after it.
//
// An ask with a window is answered as far as that reaches, and goes on with each grant of more, its ranks in
// turn: what its reader has not taken stays in the files. A file that cannot be read ends the request, with
// the reason.
//
// Thread safety: all methods. `deliver` may block and returns false when the stream has gone, which ends the
// request.
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

#include "agent/attempt.h"
#include "agent/internal_errors.h"
#include "agent/log_bound.h"
#include "agent/log_loss.h"
#include "agent/rank_logs.h"
#include "agent/step_records.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class LogKeeper : public RankLogs {
 public:
  using Deliver = std::function<bool(v1::LogLines)>;

  // `lost` gets the time in which logs were lost, as it passes. `steps`: null where none are recorded.
  LogKeeper(std::string work_dir, Deliver deliver, std::function<void(absl::Duration)> lost = nullptr,
            StepRecords* steps = nullptr, int64_t max_log_bytes = kMaxLogBytes,
            InternalErrors errors = InternalErrors());
  ~LogKeeper() override;  // Ends all requests.

  // Creates the work directory, proves that it can be written, and takes it for this process for as long as
  // what it returns lives: two agents would write the same logs, and read each other's. FAILED_PRECONDITION
  // names the process that has it.
  static absl::StatusOr<UniqueFd> Prepare(const std::string& work_dir);

  std::string PathOf(const RankId& id) const override;
  std::string DirectoryOf(const AttemptId& id) const override;
  absl::StatusOr<UniqueFd> OpenForRank(const RankId& id) override;
  void RankEnded(const RankId& id) override;
  void AddNotice(const RankId& id, const std::string& words) override;
  std::vector<std::string> Tail(const RankId& id, int lines) const override;

  void Read(const v1::ReadLogs& ask);
  void Grant(const v1::LogGrant& grant);  // For a request that has ended it is nothing.
  void DropAll();

 private:
  struct LogFile;  // What was read of one rank's log.
  struct Request;  // What one ReadLogs has read so far.

  void Serve();
  bool Admit(bool idle);
  absl::Status Begin(const v1::ReadLogs& ask, int64_t drops);
  absl::StatusOr<std::shared_ptr<Request>> Open(const v1::ReadLogs& ask) const;
  bool ServeOnce(Request* request, bool* progress, bool* done);
  void AddRemoved(Request* request, absl::string_view what, absl::string_view suffix) const;
  absl::Status FindTraces(Request* request) const;
  absl::Status FindSteps(Request* request) const;
  absl::Status FindEvidence(Request* request) const;
  absl::Status ReadWhole(Request* request, LogFile* file);
  absl::Status ReadMore(Request* request, LogFile* file);
  bool PassGap(LogFile* file) const;
  static bool WasRewritten(const LogFile& file);
  static void StartAgain(LogFile* file);
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
  int64_t drops_ ABSL_GUARDED_BY(mutex_) = 0;  // Of DropAll(): an ask of before one begins nothing.
  std::map<int64_t, std::shared_ptr<Request>> requests_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
