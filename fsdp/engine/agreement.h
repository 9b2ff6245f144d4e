// Before the first collective, ranks make sure that they run the same program: one that differs would hang
// all of them in a collective, or sum what does not belong together. Rank 0 compares and everybody gets its
// verdict, so all ranks fail with the same words and the first exit names the cause.
//
// Only hashes travel while ranks agree. Where they do not, the first rank that differs hands in the lines
// behind its hash (fingerprint.h), and the verdict names the first line that is another.
//
// Ranks compare the files that have no checksums in the same way: those of a checkpoint, since what is
// replaced between the opens of two ranks would be a model of two, and those of tokens, since nodes that have
// other copies train on other samples.
//
// Errors: FAILED_PRECONDITION, such as "... rank 3 differs from rank 0: spec.global_batch = 64, not 32 ...";
// the store's errors pass through.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/store.h"
#include "fsdp/engine/rank_fault.h"

namespace fsdpd {

// `fingerprint`: Fingerprint() of the rank's plan. This binary's version is compared with it.
absl::Status AgreeOnProgram(Store* store, int rank, int world, const std::vector<std::string>& fingerprint,
                            absl::Duration timeout);

// What ranks opened each for itself.
struct OpenedFiles {
  std::string key;   // Of its own in an attempt, in the store: "restore/files".
  std::string what;  // "files of /models/x"
  // What tells it from others: lines of "NAME = VALUE". Or why this rank could not open it: then no rank goes
  // on, and no other waits for this one.
  absl::StatusOr<std::vector<std::string>> traits;
  v1::RankFault::Kind kind = v1::RankFault::KIND_UNSPECIFIED;  // Of the errors, as BlamedOnFile() marks them.
};

// The error of a rank that could not open them is its own; that of the other ranks is then marked as a
// peer's (peer_lost.h). It is for ever where all ranks have the same one.
absl::Status AgreeOnFiles(Store* store, int rank, int world, const OpenedFiles& opened,
                          absl::Duration timeout);

// A hash as plans and logs write it.
std::string HashText(uint64_t hash);

}  // namespace fsdpd
