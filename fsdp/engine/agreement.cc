#include "fsdp/engine/agreement.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <vector>

#include "base/check.h"
#include "base/version.h"

namespace fsdpd {
namespace {

constexpr char kAgreed[] = "agreed";
constexpr size_t kMaxNamed = 8;  // Ranks that a message names; more say nothing new.

std::string ProgramKey(int rank) { return absl::StrCat("program/", rank); }

absl::StatusOr<std::string> Compare(Store* store, int world, const std::string& own, absl::Duration timeout) {
  std::vector<std::string> differ;
  for (int rank = 1; rank < world; ++rank) {
    FSDPD_ASSIGN_OR_RETURN(const std::string theirs, store->Get(ProgramKey(rank), timeout));
    if (theirs != own) differ.push_back(absl::StrFormat("rank %d has %s", rank, theirs));
  }
  if (differ.empty()) return std::string(kAgreed);
  const size_t total = differ.size();
  if (total > kMaxNamed) differ.resize(kMaxNamed);
  return absl::StrFormat(
      "ranks compiled different programs from the job's spec: rank 0 has %s, but %s (%d of %d differ)", own,
      absl::StrJoin(differ, ", "), total, world);
}

}  // namespace

std::string HashText(uint64_t hash) { return absl::StrFormat("%016x", hash); }

absl::Status AgreeOnProgram(Store* store, int rank, int world, uint64_t program_hash,
                            absl::Duration timeout) {
  const std::string own = absl::StrCat(HashText(program_hash), " (version ", kVersion, ")");
  FSDPD_RETURN_IF_ERROR(store->Set(ProgramKey(rank), own));
  if (rank == 0) {
    FSDPD_ASSIGN_OR_RETURN(const std::string verdict, Compare(store, world, own, timeout));
    FSDPD_RETURN_IF_ERROR(store->Set("program/verdict", verdict));
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string verdict, store->Get("program/verdict", timeout));
  return verdict == kAgreed ? absl::OkStatus() : absl::FailedPreconditionError(verdict);
}

}  // namespace fsdpd
