// Writes a job's checkpoints while it trains: each rank its file of each (job_file.h), on threads of its own,
// from a snapshot; rank 0 commits when all files are on disk, and removes what is older than the job keeps.
//
//   AwaitFree()   before a step is submitted that takes a snapshot: the last one's numbers are still read
//                 until they are on disk. How long that took is the stall.
//   Write()       the step is done and its snapshot taken. Returns at once.
//   AwaitLast()   the last save is on disk, or not: what came of it.
//   Finish()      after the last step.
//
// The directory is this attempt's (directory_lock.h), and so are the files' names (JobLabel::attempt): a rank
// of an earlier attempt that was cut off and still writes cannot replace a file of this one.
//
// Ranks tell each other through the store: saves are numbered, and a rank sets its sum of each ("save/N/R"),
// rank 0 the outcome ("save/N"). When one file cannot be written there is no checkpoint, every rank that
// hears so removes its own file, and training goes on. A saver that is destroyed says so in the place of its
// next save, so no other waits for it for ever.
//
// The store may be silent: ranks of several nodes reach it through a coordinator, which may be away. Where
// Options::store_may_be_away, a rank that has waited for some seconds says its sum in a directory beside the
// checkpoints too, where rank 0 looks, and takes a checkpoint that is there for one that was committed: all
// nodes share the directory. So what is saved meanwhile counts, of ranks that are told to leave too.
//
// Thread safety: one thread; Options::on_saved is called from another one. Errors: only of Finish, where the
// checkpoint of the last step was asked for and is not there: what the job has learnt would be lost.
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
#include "fsdp/checkpoint/dcp_sums.h"
#include "fsdp/checkpoint/job_file.h"
#include "fsdp/comm/file_store.h"
#include "fsdp/comm/store.h"
#include "fsdp/engine/directory_lock.h"
#include "fsdp/engine/snapshot.h"
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
    bool store_may_be_away = false;
    const std::atomic<bool>* stop = nullptr;  // AwaitFree() waits no longer once it is set.
    DirectoryLock* directory = nullptr;
    // Rank 0: of each checkpoint, also of one that could not be written. May be empty.
    std::function<void(const v1::SavedCheckpoint&)> on_saved;
  };

  // `snapshot`, plan, store and directory outlive the saver.
  Saver(Options options, const Snapshot* snapshot);
  ~Saver();

  void AwaitFree();
  void Write(const TrainingState& state);
  // OK where nothing was saved. CANCELLED when `stop` was set first.
  absl::Status AwaitLast();
  absl::Status Finish();

  // That the last save took, from Write() until this rank knew what came of it; 0: there was none.
  double LastSeconds() const;

 private:
  struct Save {
    int64_t number = 0;
    TrainingState state;
    std::chrono::steady_clock::time_point begin;
    double stall_seconds = 0;
  };

  void Leave();
  FileStore* Beside();
  absl::StatusOr<std::string> AwaitWord(int64_t rank, const std::string& key,
                                        const std::function<std::optional<std::string>()>& beside);
  absl::StatusOr<std::string> AwaitSum(const Save& save, int64_t rank);
  absl::StatusOr<std::string> AwaitOutcome(const Save& save, const std::string& directory,
                                           const std::string& own);
  void Run();
  void Do(const Save& save);
  // `of_peer`: whether another rank's error is why nothing was committed.
  absl::StatusOr<std::string> Decide(const Save& save, const std::string& directory, const std::string& own,
                                     bool* of_peer);
  absl::StatusOr<DcpSum> WriteFile(const Save& save, const std::string& directory, const JobFile& file);
  absl::StatusOr<int64_t> Commit(const Save& save, const std::string& directory, const std::string& own);
  void Tidy(int64_t step, const std::string& directory);
  void Tell(const Save& save, const std::string& directory, const absl::StatusOr<int64_t>& bytes);

  const Options options_;
  const Snapshot* const snapshot_;
  std::unique_ptr<FileStore> beside_;  // The worker's; null: not needed so far.
  bool told_of_threads_ = false;       // That there are too few of them. Likewise.
  bool store_is_away_ = false;         // When it was last asked. The worker's, as beside_.
  std::map<std::string, bool> own_;    // The worker's: whether a checkpoint in the directory is the job's.

  mutable Mutex mutex_;
  CondVar changed_;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Save> next_ ABSL_GUARDED_BY(mutex_);
  int64_t saves_ ABSL_GUARDED_BY(mutex_) = 0;  // Begun so far.
  double stall_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_step_ ABSL_GUARDED_BY(mutex_) = 0;
  double last_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);  // Of the last save that ended.
  std::thread worker_;                         // Last: it uses all of the above.
};

}  // namespace fsdpd
