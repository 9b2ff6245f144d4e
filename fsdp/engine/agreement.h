// Agreement of all ranks of an attempt: that they run the same program (AgreeOnProgram) and opened the same
// files (AgreeOnFiles).
//
// A rank with a different program would hang all ranks in a collective, or sum unrelated values. So before
// the first collective, rank 0 compares a hash from every rank and publishes one verdict. All ranks fail with
// the same message, and the first exit names the cause.
//
// Ranks exchange only hashes while they agree. If they differ, the first differing rank uploads the lines
// behind its hash (fingerprint.h), and the verdict quotes the first line that differs.
//
// Files without checksums are compared the same way. A checkpoint that is replaced between the opens of two
// ranks would be loaded as a mix of two models. Nodes with different copies of a token file would train on
// different samples.
//
// Errors: FAILED_PRECONDITION, such as "... rank 3 differs from rank 0: spec.global_batch = 64, not 32 ...";
// errors of the store pass through.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/store.h"
#include "fsdp/engine/error_cause.h"

namespace fsdpd {

// `fingerprint`: Fingerprint() of the rank's plan. The version of this binary is compared as well.
absl::Status AgreeOnProgram(Store* store, int rank, int world, const std::vector<std::string>& fingerprint,
                            absl::Duration timeout);

// The files that this rank opened, as it saw them.
struct OpenedFiles {
  std::string key;   // Key prefix in the store, unique within an attempt: "restore/files".
  std::string what;  // "files of /models/x"
  // Properties that identify the files: lines of "NAME = VALUE". Or the error of opening them: then all ranks
  // fail, and no rank waits for this one.
  absl::StatusOr<std::vector<std::string>> traits;
  v1::ErrorClass::Kind kind = v1::ErrorClass::KIND_UNSPECIFIED;  // Kind of error for WithFileCause().
};

// A rank that could not open the files returns its own error. The other ranks return it marked as a peer's
// error (peer_lost.h). The error is permanent if all ranks have the same one.
absl::Status AgreeOnFiles(Store* store, int rank, int world, const OpenedFiles& opened,
                          absl::Duration timeout);

}  // namespace fsdpd
