#include "client/connect/log_follow.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <map>
#include <utility>

#include "base/rank/log_gap.h"

namespace fsdpd {
namespace {

using Source = std::pair<int32_t, int32_t>;  // Attempt, rank.

struct Shown {
  int64_t lines = 0;
  std::string last;
  std::string notice;  // The last notice. Each connection receives it again.
};

}  // namespace

absl::Status FollowLogs(CoordinatorClient* client, v1::TailLogsRequest request, const FollowOptions& options,
                        Interrupt* interrupt, const std::function<void(const v1::TailLogsResponse&)>& on_line,
                        const std::function<void(const std::string&)>& on_notice) {
  const bool from_the_start = request.tail_lines() == 0;
  std::map<Source, Shown> shown;
  absl::Time lost_since = absl::InfiniteFuture();
  while (true) {
    std::map<Source, int64_t> seen;  // Lines received on this connection.
    const absl::Time opened = absl::Now();
    const auto take = [&](const v1::TailLogsResponse& log) {
      const Source source(log.attempt(), log.rank());
      if (log.notice()) {
        // A gap notice replaces lines that no longer exist. They count as before, so that later lines match.
        const int64_t gone = from_the_start ? LinesOfLogGap(log.line()) : 0;
        if (gone > 0 && (seen[source] += gone) <= shown[source].lines) return;
        if (gone > 0) shown[source].lines = seen[source];
        // Other notices are not lines of the log: counting them would hide lines after a reconnect.
        if (std::exchange(shown[source].notice, log.line()) != log.line()) on_line(log);
        return;
      }
      const bool first = seen[source]++ == 0;
      // With a tail, a reconnect requests one line, which was shown already if nothing was written since.
      if (from_the_start ? seen[source] <= shown[source].lines : first && log.line() == shown[source].last)
        return;
      // Only a new line ends an outage. Repeated lines do not: while one node is unreachable, each reconnect
      // reads the lines of the other nodes again.
      if (lost_since != absl::InfiniteFuture()) {
        lost_since = absl::InfiniteFuture();
        on_notice(
            from_the_start
                ? "connected again"
                : "connected again; lines written meanwhile may be missing, run without --tail to see them");
      }
      ++shown[source].lines;
      shown[source].last = log.line();
      on_line(log);
    };
    const absl::Status status = client->TailLogs(request, interrupt, take);
    if (interrupt->fired()) return absl::CancelledError("interrupted");
    // A coordinator that shuts down may cancel the stream.
    if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;
    // A connection that lasted this long counts as restored even without new lines.
    if (absl::Now() - opened >= options.reconnect_for) lost_since = absl::InfiniteFuture();
    if (lost_since == absl::InfiniteFuture()) {
      lost_since = absl::Now();
      on_notice(absl::StrCat("connection lost (", std::string(status.message()), "); reconnecting"));
    }
    if (absl::Now() - lost_since >= options.reconnect_for) return status;
    if (interrupt->WaitFor(absl::ToChronoNanoseconds(options.pause)))
      return absl::CancelledError("interrupted");
    if (!from_the_start) request.set_tail_lines(1);
  }
}

}  // namespace fsdpd
