// Trace writer of a rank: decides which steps are traced and writes the files into the attempt's directory on
// its node (base/rank/trace_file.h). Optionally, with or without a trace, it writes a snapshot of the
// allocator after the step (memory_file.h).
//
// Steps in the spec are known from the start. More can be requested while the job runs, by step number, so
// that all ranks trace the same steps; a rank that receives a request too late for a step reports that, and
// writes the others.
//
// Files are written atomically by a separate thread. A full or slow disk only loses traces: both the queue
// and the total number of files are bounded.
//
//   RecordsMemory -> (TakesMemory)   as a step is submitted
//   Takes(step) -> Write             as it is collected, for each step in order
//   Ask at any time;   AwaitWritten at the end
//
// Thread safety: Ask from any thread; the rest from the trainer's. `on_written` is called on this object's
// thread or on the trainer's, once per step that was to be traced and has been submitted since.
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
  std::string error;  // Empty: success.
};

struct WrittenTrace : WrittenFile {  // Without path and error: only a memory snapshot was requested.
  int64_t step = 0;
  bool asked = false;                 // Requested while the job ran.
  std::optional<WrittenFile> memory;  // If a snapshot was requested.
};

class StepTraces {
 public:
  struct Options {
    std::string directory;  // Empty: the agent named none, and nothing is written.
    int rank = 0;
    std::set<int64_t> steps;  // From the spec.
    bool memory = false;      // Record allocations from the start, and write snapshots of the first spikes.
    std::set<int64_t> memory_steps;  // From the spec: steps after which a snapshot is written.
    std::function<void(const WrittenTrace&)> on_written;
  };

  explicit StepTraces(Options options);
  ~StepTraces();  // Finishes the file that is being written.

  // Requests at most kMaxTracedSteps from `first` on, optionally with memory snapshots.
  void Ask(int64_t first, int64_t steps, bool memory = false);

  // Whether allocations must be recorded now, because a snapshot may be taken later.
  bool RecordsMemory() const;
  // Whether to take a snapshot after the step that was just submitted. `spike`: its memory spiked.
  bool TakesMemory(int64_t step, bool spike);

  // Whether any step from `oldest` (not yet collected) to the one after `newest` is traced, or any was
  // requested; data that is only recorded for traces must then be on.
  bool Expects(int64_t oldest, int64_t newest) const;

  // Whether the step that was just collected is traced: if so, Write it.
  bool Takes(int64_t step);
  // `memory_file`: makes the snapshot file of a step for which TakesMemory() was true, on the writer thread;
  // else null. `complete`, on the same thread: adds data that becomes known later; may be null. If the file
  // would be too large with the slices it adds, these and their tracks are dropped and the title says so.
  void Write(Timeline timeline, std::function<std::string()> memory_file = nullptr,
             std::function<void(Timeline*)> complete = nullptr);
  // For a step that is not traced.
  void WriteMemory(int64_t step, std::function<std::string()> memory_file);

  // False: something was not written in time. Nothing is written afterwards.
  bool AwaitWritten(absl::Duration longest);

 private:
  struct Record {
    int64_t step = 0;
    std::optional<Timeline> timeline;
    std::function<std::string()> memory_file;
    std::function<void(Timeline*)> complete = nullptr;
    bool asked = false;
    bool wants_memory = false;

    bool has_memory() const { return memory_file != nullptr || wants_memory; }
  };
  void Queue(Record record);
  void Serve();
  std::string TextOf(Record* record) const;
  void WriteFiles(Record* record, WrittenTrace* written);
  absl::Status WriteFile(const std::string& name, const std::string& text, WrittenFile* written);
  void Report(const WrittenTrace& written) const;

  const Options options_;
  int files_ = 0;  // Accessed by the writer thread.

  mutable Mutex mutex_;
  CondVar changed_;
  // Steps, and whether with memory snapshots.
  std::map<int64_t, bool> asked_ ABSL_GUARDED_BY(mutex_);  // Requested, in the future.
  std::map<int64_t, bool> taken_ ABSL_GUARDED_BY(mutex_);  // Requested and reached, not yet written.
  int spikes_ ABSL_GUARDED_BY(mutex_) = 0;                 // Number of snapshots taken for spikes.
  std::deque<Record> waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Started with the first file.
};

}  // namespace fsdpd
