// A rank's traces: which of its steps are written down, and the files that they come to, in the attempt's
// folder on its node (base/trace_file.h).
//
// The steps of a spec are known from the start. More are asked for while the job runs, by step number, so
// that all ranks trace the same; a rank that hears of a step too late says so, and writes the others.
//
// Files are written by a thread of its own, whole or not at all. A disk that is full or slow costs traces and
// nothing else: what waits to be written is bounded, and so is all that is written.
//
//   Takes(step) -> Write(its timeline), for each step in order;   Ask at any time
//   AwaitWritten at the end
//
// Thread safety: Ask from any thread; the rest from the trainer's. `on_written` is called on this object's
// thread or on the trainer's, once for each step that was to be traced and has been submitted since.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "fsdp/plan/predict/timeline.h"

namespace fsdpd {

struct WrittenTrace {
  int64_t step = 0;
  bool asked = false;  // While the job ran.
  std::string path;
  int64_t bytes = 0;
  std::string error;  // Empty: the file is there.
};

class StepTraces {
 public:
  struct Options {
    std::string folder;  // Empty: the agent named none, and nothing is written.
    int rank = 0;
    std::set<int64_t> steps;  // Of the spec.
    std::function<void(const WrittenTrace&)> on_written;
  };

  explicit StepTraces(Options options);
  ~StepTraces();  // Ends after the file that is being written.

  // At most kMaxTracedSteps from `first` on.
  void Ask(int64_t first, int64_t steps);

  // Whether the step that was just collected is traced: then Write it.
  bool Takes(int64_t step);
  void Write(Timeline timeline);

  // False: something was not written in time. Nothing is written afterwards.
  bool AwaitWritten(absl::Duration longest);

 private:
  void Serve();
  absl::Status WriteFile(const Timeline& timeline, WrittenTrace* written);
  void Tell(const WrittenTrace& written) const;

  const Options options_;
  int files_ = 0;  // The thread's.

  Mutex mutex_;
  CondVar changed_;
  std::set<int64_t> asked_ ABSL_GUARDED_BY(mutex_);  // And not come to yet.
  std::set<int64_t> taken_ ABSL_GUARDED_BY(mutex_);  // Of those that were asked for: not written yet.
  std::deque<Timeline> waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Once there is something to write.
};

}  // namespace fsdpd
