// Saver: writes a job's checkpoints while it trains. Each rank writes its file (job_file.h) from a snapshot,
// on its own threads; rank 0 commits once all files are on disk, and removes checkpoints beyond the job's
// retention.
//
//   AwaitSnapshotBuffer()   before submitting a step that takes a snapshot: the previous save reads its
//                           snapshot until it is on disk. The time spent here is the stall.
//   Write()                 the step is done and its snapshot taken. Returns immediately.
//   AwaitLast()             waits for the last save and returns its outcome.
//   Finish()                after the last step.
//
// The directory is locked by this attempt (directory_lock.h), and file names contain the attempt
// (JobLabel::attempt): a rank of an earlier attempt that lost its connection and still writes cannot replace
// a file of this one.
//
// Protocol, through the store: saves are numbered. Each rank publishes its checksum ("save/N/R"), and rank 0
// the outcome ("save/N"). If any file cannot be written, there is no checkpoint: every rank removes its own
// file, and training continues. A saver that is destroyed publishes a failed save as its next one, so no
// other rank waits forever.
//
// The store may be unavailable, since ranks on several nodes reach it through the coordinator. With
// Options::store_may_be_unreachable, a rank that has waited for some seconds also writes its checksum into a
// directory next to the checkpoints, where rank 0 looks, and treats an existing checkpoint as committed,
// since all nodes share the directory. So saves succeed without a coordinator, even for ranks that were asked
// to leave.
//
// Thread safety: one thread; Options::on_saved is called on another. Errors: only from Finish, if the
// checkpoint of the last step was requested and not written, since the job's result would be lost.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "fsdp/checkpoint/dcp/dcp_sums.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/comm/file_store.h"
#include "fsdp/comm/store.h"
#include "fsdp/engine/directory_lock.h"
#include "fsdp/engine/operations/snapshot.h"
#include "fsdp/plan/plan.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

class Saver {
 public:
  struct Options {
    const Plan* plan = nullptr;
    MeshPosition position;
    Store* store = nullptr;
    JobLabel label;
    bool store_may_be_unreachable = false;
    const std::atomic<bool>* stop = nullptr;  // Ends the wait of AwaitSnapshotBuffer().
    DirectoryLock* directory = nullptr;
    // Rank 0: called for each checkpoint, including failed ones. May be empty.
    std::function<void(const v1::SavedCheckpoint&)> on_saved;
  };

  // `snapshot` and the plan, store and directory of `options` must outlive the saver.
  Saver(Options options, const Snapshot* snapshot);
  ~Saver();

  void AwaitSnapshotBuffer();
  void Write(const TrainingState& state);
  // OK if nothing was saved. CANCELLED if `stop` was set first.
  absl::Status AwaitLast();
  absl::Status Finish();

  // Duration of the last save, from Write() until this rank knew the outcome; 0: there was none.
  double LastSeconds() const;

 private:
  struct Save {
    int64_t number = 0;
    TrainingState state;
    std::chrono::steady_clock::time_point begin;
    double stall_seconds = 0;
  };

  void Leave();
  FileStore* FallbackStore();
  absl::StatusOr<std::string> AwaitValue(int64_t rank, const std::string& key,
                                         const std::function<std::optional<std::string>()>& fallback);
  absl::StatusOr<std::string> AwaitSum(const Save& save, int64_t rank);
  absl::StatusOr<std::string> AwaitOutcome(const Save& save, const std::string& directory,
                                           const std::string& own);
  void Run();
  void ExecuteSave(const Save& save);
  // `of_peer`: set if another rank's error prevented the commit.
  absl::StatusOr<std::string> Decide(const Save& save, const std::string& directory, const std::string& own,
                                     bool* of_peer);
  absl::StatusOr<DcpSum> WriteFile(const Save& save, const std::string& directory, const JobFile& file);
  absl::StatusOr<int64_t> Commit(const Save& save, const std::string& directory, const std::string& own);
  void RemoveOldCheckpoints(int64_t step, const std::string& directory);
  void ReportSaved(const Save& save, const std::string& directory, const absl::StatusOr<int64_t>& bytes);

  const Options options_;
  const Snapshot* const snapshot_;
  std::unique_ptr<FileStore> fallback_;  // Used by the worker thread; null: not needed yet.
  bool warned_of_threads_ = false;       // Warned that threads could not be started. Worker thread.
  bool store_is_unreachable_ = false;    // When it was last queried. Worker thread.
  std::map<std::string, bool> own_;      // Cache: whether a checkpoint is the job's own. Worker thread.

  mutable Mutex mutex_;
  CondVar changed_;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Save> next_ ABSL_GUARDED_BY(mutex_);
  int64_t saves_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of saves begun.
  double stall_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_step_ ABSL_GUARDED_BY(mutex_) = 0;
  double last_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);  // Outcome of the last save.
  std::thread worker_;                         // Last: it uses all of the above.
};

}  // namespace fsdpd
