// Checkpoints in a job's directory: DIR/iter_0000200 for each, and latest_checkpointed_iteration.txt with the
// number of the newest, which is for other tools; we list the directory instead.
//
// Thread safety: calls for one directory must not overlap. Errors: system errors with the path.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdpd {

// Timeout for other ranks' file operations: disks may be slow, and an agent ends a job with a lost rank long
// before that. Shorter without agents (fsdp.h: file_timeout).
inline constexpr absl::Duration kLongestFileWait = absl::Hours(24);

struct FoundCheckpoint {
  int64_t step = 0;
  std::string path;
  bool committed = false;  // False: being written, or left incomplete by an earlier attempt.
};

std::string CheckpointPath(const std::string& dir, int64_t step);

// The export of a job (export.h): DIR/hf or DIR/peft, and DIR/hf.ATTEMPT.part until it is complete.
inline constexpr const char* kExportNames[] = {"hf", "peft"};

// Whether it is committed. False only if the system reports that its .metadata does not exist: a server that
// does not respond must not make an old checkpoint look like one to remove.
bool IsCheckpoint(const std::string& path);

// Newest first. Empty if the directory does not exist.
absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(const std::string& dir);

// Call it after the commit of `step`.
absl::Status RecordNewest(const std::string& dir, int64_t step);

// Removes this job's committed checkpoints that are older than `newest` (`is_own` decides by path;
// uncommitted ones have no owner), except the last `keep_last` committed ones including `newest`, and those
// whose step is a multiple of `keep_every` (0: none). Removes first the file that makes the directory a
// checkpoint, and leaves files that are not part of a checkpoint. Returns the first failure, after trying all
// others.
absl::Status RemoveOld(const std::string& dir, int64_t newest, int64_t keep_last, int64_t keep_every,
                       const std::function<bool(const std::string& path)>& is_own);

// For the holder of the directory's lock, before it writes:

// Removes files of interrupted saves (__R_N.distcp.*.part, and temporary files of a commit), and checkpoint
// directories that are empty then. Returns the number of files. Complete files of other ranks are left to
// RemoveOld(). Also removes unfinished exports of earlier attempts, so that late writes of such an attempt
// are discarded.
absl::StatusOr<int64_t> RemoveUnfinished(const std::string& dir);

// Renames a damaged checkpoint to "iter_0000200.damaged", replacing an earlier one of that name, since the
// job will reach that step again.
absl::Status SetAside(const std::string& path);

}  // namespace fsdpd
