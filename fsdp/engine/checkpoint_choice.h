// Choice of the checkpoint that an attempt starts from: intact, and the same on all ranks. If checkpoint.dir
// holds checkpoints of this job, the newest of them is resumed; otherwise checkpoint.load decides.
//
// Protocol: rank 0 proposes a checkpoint and every rank verifies its part of the files against their
// checksums. If any rank finds damage or an I/O error, the candidate is skipped and the next older one is
// proposed. A Hugging Face directory has no checksums: every rank checks its index, headers and file sizes.
//
// A checkpoint belongs to the job if it contains the job's id, so a checkpoint of another run is never
// resumed, unless the job started from that very directory. A checkpoint of another run that is later than
// this job's start is an error, because it would eventually be taken for the newest. Damaged checkpoints in
// checkpoint.dir must be renamed before the job reaches their step again; the holder of the directory lock
// does that (directory_lock.h), as this code writes nothing. A checkpoint that rank 0 sees and another rank
// does not is not considered damaged: it stays, and the attempt fails.
//
// A job that is known to have committed a checkpoint does not start fresh: a directory without any of its
// checkpoints was deleted or is not mounted. If only an older checkpoint remains, it is used, and the missing
// one is reported in `skipped_checkpoints`.
//
// Errors are the same on all ranks, and marked as a peer's on ranks that did not detect them (peer_lost.h).
// NOT_FOUND: checkpoint.load has no checkpoint, or checkpoint.dir none of a job that committed some.
// DATA_LOSS: no candidate is intact; the job does not silently start fresh. FAILED_PRECONDITION: the
// directory belongs to another run. Errors of the store pass through.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct ChosenCheckpoint {
  std::string path;
  bool own = false;  // Written by this job.
  // Set on rank 0, newest first:
  std::vector<std::string> skipped_checkpoints = {};  // "iter_0000200: why".
  std::vector<std::string> set_aside = {};            // Damaged paths in checkpoint.dir, later than `path`.
};

// Returns nullopt if the job starts fresh. `job`: its id; if empty, no checkpoint counts as the job's own.
// `known_step`: step of the newest checkpoint that the job is known to have committed; 0: none.
absl::StatusOr<std::optional<ChosenCheckpoint>> ChooseCheckpoint(const Spec& spec, const std::string& job,
                                                                 int64_t known_step, Store* store, int rank);

}  // namespace fsdpd
