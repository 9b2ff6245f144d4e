// A rank's traces: which of its steps are written down, and the files that they come to, in the attempt's
// directory on its node (base/trace_file.h). Beside a trace, or without one, goes what the allocator holds
// after the step (memory_file.h), where that was asked for.
//
// The steps of a spec are known from the start. More are asked for while the job runs, by step number, so
// that all ranks trace the same; a rank that hears of a step too late says so, and writes the others.
//
// Files are written by a thread of its own, whole or not at all. A disk that is full or slow costs traces and
// nothing else: what waits to be written is bounded, and so is all that is written.
//
//   RecordsMemory -> (TakesMemory)   as a step is submitted
//   Takes(step) -> Write             as it is collected, for each step in order
//   Ask at any time;   AwaitWritten at the end
//
// Thread safety: Ask from any thread; the rest from the trainer's. `on_written` is called on this object's
// thread or on the trainer's, once for each step that was to be traced and has been submitted since.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "fsdp/plan/predict/timeline.h"

namespace fsdpd {

struct WrittenFile {
  std::string path;
  int64_t bytes = 0;
  std::string error;  // Empty: the file is there.
};

struct WrittenTrace : WrittenFile {  // Without path and error: only its memory was to be written.
  int64_t step = 0;
  bool asked = false;                 // While the job ran.
  std::optional<WrittenFile> memory;  // Where a snapshot was to be written.
};

class StepTraces {
 public:
  struct Options {
    std::string directory;  // Empty: the agent named none, and nothing is written.
    int rank = 0;
    std::set<int64_t> steps;  // Of the spec.
    bool memory = false;      // Allocations are recorded from the start, and the first spikes are written.
    std::set<int64_t> memory_steps;  // After which a snapshot is written, by the spec.
    std::function<void(const WrittenTrace&)> on_written;
  };

  explicit StepTraces(Options options);
  ~StepTraces();  // Ends after the file that is being written.

  // At most kMaxTracedSteps from `first` on, with their memory or without.
  void Ask(int64_t first, int64_t steps, bool memory = false);

  // Whether allocations are to be recorded now: somebody wants a snapshot sooner or later.
  bool RecordsMemory() const;
  // Whether a snapshot is to be taken of what the step that was just submitted has left. `spike`: it had one.
  bool TakesMemory(int64_t step, bool spike);

  // Whether a step from `oldest`, which was not collected yet, to the one after `newest` is traced, or any
  // was asked for: what is recorded for traces alone is to be on.
  bool Expects(int64_t oldest, int64_t newest) const;

  // Whether the step that was just collected is traced: then Write it.
  bool Takes(int64_t step);
  // `memory_file`: makes the file of a step that TakesMemory(), on the writing thread; null: it did not.
  // `complete`, there too: adds what is known later; null: nothing is. Slices that it adds, and their tracks,
  // are left out again where the file would be too large with them; its title then says so.
  void Write(Timeline timeline, std::function<std::string()> memory_file = nullptr,
             std::function<void(Timeline*)> complete = nullptr);
  // Of a step that is not traced.
  void WriteMemory(int64_t step, std::function<std::string()> memory_file);

  // False: something was not written in time. Nothing is written afterwards.
  bool AwaitWritten(absl::Duration longest);

 private:
  struct Record {
    int64_t step = 0;
    std::optional<Timeline> timeline;
    std::function<std::string()> memory_file;
    std::function<void(Timeline*)> complete;
    bool asked = false;
    bool wants_memory = false;
  };
  void Queue(Record record);
  void Serve();
  std::string TextOf(Record* record) const;
  void WriteFiles(Record* record, WrittenTrace* written);
  absl::Status WriteFile(const std::string& name, const std::string& text, WrittenFile* written);
  void Tell(const WrittenTrace& written) const;

  const Options options_;
  int files_ = 0;  // The thread's.

  mutable Mutex mutex_;
  CondVar changed_;
  // Steps, and whether with their memory.
  std::map<int64_t, bool> asked_ ABSL_GUARDED_BY(mutex_);  // And not come to yet.
  std::map<int64_t, bool> taken_ ABSL_GUARDED_BY(mutex_);  // Of those that were asked for: not written yet.
  int spikes_ ABSL_GUARDED_BY(mutex_) = 0;                 // Whose snapshots were taken.
  std::deque<Record> waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Once there is something to write.
};

}  // namespace fsdpd
