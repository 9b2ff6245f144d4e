// What is kept of each step that a job's rank 0 reports:
// WORK_DIR/JOB_ID/steps/attempt-2.began-11.from-251.jsonl, a line of JSON a step, whose fields are
// StepRecord's (proto/fsdpd/v1/steps.proto). It owns the names of these files, how many stay, and reading
// them back. They go with the job's logs (job_directories.h).
//
// A file is a segment: consecutive steps of an attempt, from the one in its name, without a hole. A segment
// is ended by its size, and by a step that could not be written or did not come; then the next step begins
// another. So what is missing is what no segment covers, after a full disk too. A line that a crash has torn
// is the last of its segment, and is not counted.
//
// Of an attempt the newest segments stay, as many as fit in attempt_bytes: with the default, of a million
// steps at least. A step has some 380 bytes.
//
// Writing has a thread of its own: a disk that hangs keeps no rank waiting. Steps for which there is no room
// meanwhile are missing. Of these, and of those that could not be written, the agent's log tells the first,
// and `missed` counts each.
//
// Thread safety: all methods; `missed` is called on any thread. Add() and Ended() do not wait; Read() waits
// for what was added before it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/attempt.h"
#include "base/limits.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

struct StepRecordLimits {
  int64_t segment_bytes = 32 << 20;
  int64_t attempt_bytes = 512 << 20;
  size_t attempt_segments = 512;  // A disk that is full now and then makes small ones.
  size_t waiting = kMaxBufferedReports;
};

class StepRecords {
 public:
  struct Line {
    int64_t step = 0;  // 0: a StepSegment.
    std::string json;
  };

  // `missed`: a step is not recorded.
  StepRecords(std::string work_dir, std::function<void()> missed, StepRecordLimits limits = {});
  ~StepRecords();  // Writes what waits.

  void Add(const AttemptId& id, const v1::StepReport& report);
  void Ended(const AttemptId& id);  // No step of it comes any more.

  // As ReadLogs.steps says. NOT_FOUND where nothing is kept of the job, or of the attempt. REQUIRES:
  // CheckJobId(job_id).
  absl::StatusOr<std::vector<Line>> Read(const std::string& job_id, int attempt,
                                         const v1::RecordedSteps& ask);

 private:
  struct Waiting {
    AttemptId id;
    int64_t step = 0;  // 0: the attempt has ended.
    std::string line;
  };
  struct Open {  // The segment that an attempt writes to.
    UniqueFd fd;
    std::string path;
    int64_t began = 0;
    bool looked = false;  // For what is there of it already.
    int64_t next_step = 0;
    int64_t bytes = 0;
  };

  void Run();
  void Write(const Waiting& next);
  absl::Status Append(Open* open, const Waiting& next);
  absl::Status Begin(Open* open, const Waiting& next);

  const std::string work_dir_;
  const std::function<void()> missed_;
  const StepRecordLimits limits_;
  std::map<AttemptId, Open> open_;  // The thread's own, as the next.
  std::map<AttemptId, bool> failing_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool overrun_ ABSL_GUARDED_BY(mutex_) = false;  // Steps are missing; said once.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
