// Before the first collective, ranks make sure that they run the same program: one that differs would hang
// all of them in a collective, or sum what does not belong together. Rank 0 compares and everybody gets its
// verdict, so all ranks fail with the same words and the first exit names the cause.
//
// Errors: FAILED_PRECONDITION naming the ranks that differ and their hashes; the store's errors pass through.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <cstdint>
#include <string>

#include "fsdp/comm/store.h"

namespace fsdpd {

// `program_hash` is Program::hash; this binary's version is compared with it.
absl::Status AgreeOnProgram(Store* store, int rank, int world, uint64_t program_hash, absl::Duration timeout);

// A hash as plans and logs write it.
std::string HashText(uint64_t hash);

}  // namespace fsdpd
