#include "coordinator/access/reader_streams.h"

#include <absl/strings/str_cat.h>

namespace fsdpd {

absl::Status ReaderStreams::Take(const std::string& principal, ReaderKind kind) {
  const bool reads_logs = kind == ReaderKind::kLogs;
  MutexLock lock(&mutex_);
  const auto it = by_principal_.find(principal);
  const Share share = it == by_principal_.end() || principal.empty() ? Share() : it->second;
  if (reads_logs && share.log_readers >= kMaxLogReadersPerPrincipal) {
    return absl::ResourceExhaustedError(
        absl::StrCat("token of '", principal, "': too many open readers of logs, traces and steps (got ",
                     share.log_readers + 1, ", want at most ", kMaxLogReadersPerPrincipal,
                     "); end some of them and retry"));
  }
  if (share.streams >= kMaxStreamsPerPrincipal) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "token of '", principal, "': too many open streams (got ", share.streams + 1, ", want at most ",
        kMaxStreamsPerPrincipal, "); follow many jobs by one WatchEvents (`fsdpctl events -w`)"));
  }
  if (streams_ >= kMaxReaderStreams) {
    return absl::ResourceExhaustedError(absl::StrCat("coordinator: too many open streams (want at most ",
                                                     kMaxReaderStreams, "); retry when others have ended"));
  }
  ++streams_;
  Share& taken = by_principal_[principal];
  ++taken.streams;
  if (reads_logs) ++taken.log_readers;
  return absl::OkStatus();
}

void ReaderStreams::Release(const std::string& principal, ReaderKind kind) {
  MutexLock lock(&mutex_);
  --streams_;
  const auto it = by_principal_.find(principal);
  if (kind == ReaderKind::kLogs) --it->second.log_readers;
  if (--it->second.streams == 0) by_principal_.erase(it);
}

}  // namespace fsdpd
