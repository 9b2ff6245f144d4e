#include "client/log_follow.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <map>
#include <utility>

#include "base/log_gap.h"

namespace fsdpd {
namespace {

using Source = std::pair<int32_t, int32_t>;  // Attempt, rank.

struct Shown {
  int64_t lines = 0;
  std::string last;
  std::string notice;  // The last one; each connection is told again.
};

}  // namespace

absl::Status FollowLogs(CoordinatorClient* client, v1::TailLogsRequest request, const FollowOptions& options,
                        Interrupt* interrupt, const std::function<void(const v1::TailLogsResponse&)>& on_line,
                        const std::function<void(const std::string&)>& tell) {
  const bool from_the_start = request.tail_lines() == 0;
  std::map<Source, Shown> shown;
  absl::Time lost_since = absl::InfiniteFuture();
  while (true) {
    std::map<Source, int64_t> seen;  // On this connection.
    const absl::Time opened = absl::Now();
    const auto take = [&](const v1::TailLogsResponse& log) {
      const Source source(log.attempt(), log.rank());
      if (log.notice()) {
        // In the place of lines, which count as they did when they were there.
        const int64_t gone = from_the_start ? LinesOfLogGap(log.line()) : 0;
        if (gone > 0 && (seen[source] += gone) <= shown[source].lines) return;
        if (gone > 0) shown[source].lines = seen[source];
        // Any other is no line of the log: counted as one, it would hide one when the log is read again.
        if (std::exchange(shown[source].notice, log.line()) != log.line()) on_line(log);
        return;
      }
      const bool first = seen[source]++ == 0;
      // After a tail the last line comes once more, if nothing was written since.
      if (from_the_start ? seen[source] <= shown[source].lines : first && log.line() == shown[source].last)
        return;
      // Only what is new ends an outage: a node that stays away sends the others round and round.
      if (lost_since != absl::InfiniteFuture()) {
        lost_since = absl::InfiniteFuture();
        tell(from_the_start
                 ? "connected again"
                 : "connected again; what was written meanwhile may be missing: without --tail it is shown");
      }
      ++shown[source].lines;
      shown[source].last = log.line();
      on_line(log);
    };
    const absl::Status status = client->TailLogs(request, interrupt, take);
    if (interrupt->fired()) return absl::CancelledError("interrupted");
    // A coordinator that stops may cancel the stream.
    if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;
    // A connection that held was one, though nothing was written.
    if (absl::Now() - opened >= options.reconnect_for) lost_since = absl::InfiniteFuture();
    if (lost_since == absl::InfiniteFuture()) {
      lost_since = absl::Now();
      tell(absl::StrCat("connection lost (", std::string(status.message()), "); reconnecting"));
    }
    if (absl::Now() - lost_since >= options.reconnect_for) return status;
    if (interrupt->WaitFor(absl::ToChronoNanoseconds(options.pause)))
      return absl::CancelledError("interrupted");
    if (!from_the_start) request.set_tail_lines(1);
  }
}

}  // namespace fsdpd
