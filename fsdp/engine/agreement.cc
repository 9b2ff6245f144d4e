#include "fsdp/engine/agreement.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/version.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/plan/program/fingerprint.h"

namespace fsdpd {
namespace {

using Lines = std::vector<std::string>;

constexpr char kAgreed[] = "agreed";
constexpr char kFailed[] = " failed";  // Suffix of the hash of a rank that failed to open its files.
constexpr char kNoRank[] = "-";
constexpr size_t kMaxErrorBytes = 4096;
constexpr size_t kMaxNamed = 8;  // Ranks listed in a message.

// Values in the store have a size limit; half of it leaves space for the framing of the transport.
constexpr size_t kChunkBytes = kMaxRendezvousValueBytes / 2;

// One agreement: the prefix of its keys in the store, and the text that starts its error.
struct Subject {
  std::string key;
  std::string differ;  // "ranks compiled different programs from the job's spec"

  std::string HashKey(int rank) const { return absl::StrCat(key, "/", rank); }
  std::string ChunkKey(int rank, int64_t chunk) const {
    return absl::StrCat(key, "/", rank, "/lines/", chunk);
  }
  std::string ChunksKey(int rank) const { return absl::StrCat(key, "/", rank, "/chunks"); }
  std::string VerdictKey() const { return absl::StrCat(key, "/verdict"); }
  std::string DifferenceKey() const { return absl::StrCat(key, "/difference"); }
  // Value: the first rank that failed, or kNoRank.
  std::string FailedKey() const { return absl::StrCat(key, "/failed"); }
};

absl::Status SendLines(Store* store, const Subject& subject, int rank, const Lines& lines) {
  const std::string text = absl::StrJoin(lines, "\n");
  int64_t chunks = 0;
  for (size_t begin = 0; begin < text.size(); begin += kChunkBytes) {
    FSDPD_RETURN_IF_ERROR(store->Set(subject.ChunkKey(rank, chunks++), text.substr(begin, kChunkBytes)));
  }
  return store->Set(subject.ChunksKey(rank), absl::StrCat(chunks));
}

absl::StatusOr<Lines> ReceiveLines(Store* store, const Subject& subject, int rank, absl::Duration timeout) {
  FSDPD_ASSIGN_OR_RETURN(const std::string count, store->Get(subject.ChunksKey(rank), timeout));
  int64_t chunks = 0;
  if (!absl::SimpleAtoi(count, &chunks)) {
    return absl::InternalError(absl::StrCat(subject.ChunksKey(rank), " is '", count, "'"));
  }
  std::string text;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    FSDPD_ASSIGN_OR_RETURN(const std::string part, store->Get(subject.ChunkKey(rank, chunk), timeout));
    text += part;
  }
  return Lines(absl::StrSplit(text, '\n'));
}

// Returns "spec.global_batch = 64, not 32" if both lines assign the same name, otherwise both lines.
std::string DifferenceText(const Lines& own, const Lines& theirs) {
  const LineDifference difference = FirstDifference(own, theirs);
  const std::pair<std::string, std::string> mine =
      absl::StrSplit(difference.first, absl::MaxSplits(" = ", 1));
  const std::pair<std::string, std::string> other =
      absl::StrSplit(difference.second, absl::MaxSplits(" = ", 1));
  if (!mine.second.empty() && mine.first == other.first) {
    return absl::StrCat(difference.second, ", not ", mine.second);
  }
  return absl::StrFormat("'%s', not '%s'", difference.second, difference.first);
}

struct Differing {
  std::vector<int> ranks;     // Differ from rank 0, ascending.
  std::optional<int> failed;  // The first rank that failed on its own; may be 0.
};

absl::StatusOr<Differing> RanksThatDiffer(Store* store, const Subject& subject, int world,
                                          const std::string& own, absl::Duration timeout) {
  Differing differ;
  if (absl::EndsWith(own, kFailed)) differ.failed = 0;
  for (int rank = 1; rank < world; ++rank) {
    FSDPD_ASSIGN_OR_RETURN(const std::string theirs, store->Get(subject.HashKey(rank), timeout));
    if (theirs != own) differ.ranks.push_back(rank);
    if (!differ.failed.has_value() && absl::EndsWith(theirs, kFailed)) differ.failed = rank;
  }
  return differ;
}

absl::StatusOr<std::string> DescribeDifference(Store* store, const Subject& subject,
                                               const std::vector<int>& differ, int world,
                                               const std::string& own, const Lines& lines,
                                               absl::Duration timeout) {
  const int first = differ.front();
  FSDPD_ASSIGN_OR_RETURN(const std::string hash, store->Get(subject.HashKey(first), timeout));
  FSDPD_ASSIGN_OR_RETURN(const Lines theirs, ReceiveLines(store, subject, first, timeout));
  const std::string what =
      theirs == lines ? absl::StrFormat("%s, not %s", hash, own) : DifferenceText(lines, theirs);
  const std::vector<int> named(differ.begin(), differ.begin() + std::min(differ.size(), kMaxNamed));
  return absl::StrFormat("%s: rank %d differs from rank 0: %s (%d of %d differ: rank %s%s)", subject.differ,
                         first, what, differ.size(), world, absl::StrJoin(named, ", "),
                         named.size() < differ.size() ? ", ..." : "");
}

absl::Status Agree(Store* store, const Subject& subject, int rank, int world, const std::string& own,
                   const Lines& lines, absl::Duration timeout) {
  FSDPD_RETURN_IF_ERROR(store->Set(subject.HashKey(rank), own));
  Differing differ;
  if (rank == 0) {
    FSDPD_ASSIGN_OR_RETURN(differ, RanksThatDiffer(store, subject, world, own, timeout));
    const std::vector<int>& ranks = differ.ranks;
    FSDPD_RETURN_IF_ERROR(
        store->Set(subject.VerdictKey(), ranks.empty() ? kAgreed : absl::StrCat(ranks.front())));
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string verdict, store->Get(subject.VerdictKey(), timeout));
  if (verdict == kAgreed) return absl::OkStatus();
  // Rank 0 compares others with itself, so the verdict never names it.
  if (verdict == absl::StrCat(rank)) FSDPD_RETURN_IF_ERROR(SendLines(store, subject, rank, lines));
  if (rank == 0) {
    FSDPD_ASSIGN_OR_RETURN(const std::string text,
                           DescribeDifference(store, subject, differ.ranks, world, own, lines, timeout));
    const std::string failed = differ.failed.has_value() ? absl::StrCat(*differ.failed) : kNoRank;
    FSDPD_RETURN_IF_ERROR(store->Set(subject.FailedKey(), failed));
    FSDPD_RETURN_IF_ERROR(store->Set(subject.DifferenceKey(), text));
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string text, store->Get(subject.DifferenceKey(), timeout));
  FSDPD_ASSIGN_OR_RETURN(const std::string failed, store->Get(subject.FailedKey(), timeout));
  const absl::Status differs = absl::FailedPreconditionError(text);
  return failed == kNoRank || failed == absl::StrCat(rank) ? differs : OfPeer(differs);
}

}  // namespace

absl::Status AgreeOnProgram(Store* store, int rank, int world, const Lines& fingerprint,
                            absl::Duration timeout) {
  const std::string own = absl::StrCat(HashOf(fingerprint), " (version ", kVersion, ")");
  // The cause may be a node with another build of fsdpd-rank, which an attempt on other nodes avoids.
  const Subject subject = {"program", "ranks compiled different programs from the job's spec"};
  const absl::Status agreed = Agree(store, subject, rank, world, own, fingerprint, timeout);
  return absl::IsFailedPrecondition(agreed) ? WithNodeCause(v1::ErrorClass::KIND_CONFIGURATION, agreed)
                                            : agreed;
}

absl::Status AgreeOnFiles(Store* store, int rank, int world, const OpenedFiles& opened,
                          absl::Duration timeout) {
  const absl::Status& own = opened.traits.status();
  Lines lines = {"error = none"};
  if (!own.ok()) lines[0] = absl::StrCat("error = ", CutText(own.message(), kMaxErrorBytes));
  if (own.ok()) lines.insert(lines.end(), opened.traits->begin(), opened.traits->end());
  const Subject subject = {opened.key, absl::StrCat("ranks opened different ", opened.what)};
  const std::string hash = absl::StrCat(HashOf(lines), own.ok() ? "" : kFailed);
  const absl::Status agreed = Agree(store, subject, rank, world, hash, lines, timeout);
  if (own.ok()) return WithNodeFileCause(opened.kind, agreed);
  return agreed.ok() ? WithFileCause(opened.kind, /*by_all=*/true, own) : WithNodeFileCause(opened.kind, own);
}

}  // namespace fsdpd
