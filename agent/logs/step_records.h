// Records of the steps that rank 0 of a job reports: WORK_DIR/JOB_ID/steps/attempt-2.began-11.from-251.jsonl,
// one line of JSON per step with the fields of StepRecord (proto/fsdpd/v1/steps.proto). They are removed
// together with the logs of the job (job_directories.h).
//
// A file is a segment: consecutive steps of one attempt without gaps, starting at the step in its name. A
// segment ends at its size limit, or at a step that could not be written or was not reported; the next step
// starts a new segment. So a step is missing exactly if no segment covers it, even after a full disk:
//
//   attempt-2.began-11.from-11.jsonl    steps 11..250
//   attempt-2.began-11.from-253.jsonl   steps 253..    (251 and 252 are missing)
//
// A line that was torn by a crash is the last of its segment and is ignored. Per attempt, the newest segments
// up to attempt_bytes are retained: by default at least a million steps of about 380 bytes.
//
// A dedicated thread writes, so that a disk that hangs blocks no rank. Steps beyond the queue limit are lost.
// For these and for steps that could not be written, the first is logged and `missed` is called for each.
//
// Thread-safe; `missed` is called on any thread. Add() and Ended() do not block; Read() waits for what was
// added before it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "agent/launch/attempt.h"
#include "base/limits.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

struct StepRecordLimits {
  int64_t segment_bytes = 32 << 20;
  int64_t attempt_bytes = 512 << 20;
  size_t attempt_segments = 512;  // A disk that is full intermittently creates short segments.
  size_t waiting = kMaxBufferedReports;
};

class StepRecords {
 public:
  struct Line {
    int64_t step = 0;  // 0: the line is a StepSegment.
    std::string json;
  };

  StepRecords(std::string work_dir, std::function<void()> missed, StepRecordLimits limits = {});
  ~StepRecords();  // Writes queued steps.

  void Add(const AttemptId& id, const v1::StepReport& report);
  void Ended(const AttemptId& id);  // No more steps follow.

  // Reads as documented for ReadLogs.steps. NOT_FOUND if nothing is recorded of the job or attempt. REQUIRES:
  // CheckJobId(job_id).
  absl::StatusOr<std::vector<Line>> Read(const std::string& job_id, int attempt,
                                         const v1::RecordedSteps& ask);

 private:
  struct Waiting {
    AttemptId id;
    int64_t step = 0;  // 0: the attempt has ended.
    std::string line;
  };
  struct Open {  // The open segment of an attempt.
    UniqueFd fd;
    std::string path;
    int64_t began = 0;
    bool looked = false;  // Existing segments of the attempt were searched.
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
  std::map<AttemptId, Open> open_;  // Used on the thread only, like failing_.
  std::map<AttemptId, bool> failing_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool overrun_ ABSL_GUARDED_BY(mutex_) = false;  // The queue is full; logged once.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
