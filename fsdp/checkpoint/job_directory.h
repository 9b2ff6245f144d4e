// The checkpoints of a job in its directory: DIR/iter_0000200 for each, and beside them
// latest_checkpointed_iteration.txt with the newest one's number, which other tools read and we do not: what
// is there counts.
//
// Thread safety: none between calls on one directory. Errors: what the system answered, with the path.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdpd {

// For what another rank says of files: a disk may be slow, and an agent ends a job long before, of which a
// rank is gone. Without agents it is less (fsdp.h: file_timeout).
inline constexpr absl::Duration kLongestFileWait = absl::Hours(24);

struct FoundCheckpoint {
  int64_t step = 0;
  std::string path;
  bool committed = false;  // Others are being written, or were left half by an attempt that ended.
};

std::string CheckpointPath(const std::string& dir, int64_t step);

// Of what a job exports (hf_export.h): DIR/hf, and DIR/hf.ATTEMPT.part until that is whole.
inline constexpr char kExportName[] = "hf";

// Has been committed, as far as one can tell: only where the system says that its .metadata is not there it
// has not. A server that does not answer must not make an old checkpoint look like something to be removed.
bool IsCheckpoint(const std::string& path);

// The newest first. None in a directory that is not there.
absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(const std::string& dir);

// After the commit of `step`.
absl::Status RecordNewest(const std::string& dir, int64_t step);

// Removes what is older than `newest` and the job's own (a path is asked for; what is not committed is
// nobody's) but the last `keep_last` committed ones, `newest` among them, and those whose step `keep_every`
// divides (0: none). First goes what makes a checkpoint of it. Of a directory that holds
// more than a checkpoint does, the rest stays. Tells the first that could not be removed, after all the
// others.
absl::Status RemoveOld(const std::string& dir, int64_t newest, int64_t keep_last, int64_t keep_every,
                       const std::function<bool(const std::string& path)>& is_own);

// For who holds the directory's lock, before it writes there:

// Removes the files that saves were writing when they were killed (__R_N.distcp.*.part, and what a commit
// wrote beside), and directories of checkpoints that nothing else is in. Returns how many files. What another
// rank has written whole stays, for RemoveOld(). Also removes unfinished exports of earlier attempts, so that
// late writes of such an attempt are discarded.
absl::StatusOr<int64_t> RemoveUnfinished(const std::string& dir);

// A damaged one is kept as "iter_0000200.damaged", in the place of the last that was, since the job will
// come to that step again.
absl::Status SetAside(const std::string& path);

}  // namespace fsdpd
