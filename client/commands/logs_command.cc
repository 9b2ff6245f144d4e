// Command `logs`: the log lines of a job's ranks, ordered by time unless followed; or with --evidence the
// hang evidence that agents collected, ordered by rank.
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <optional>
#include <string>

#include "base/check.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/job_choice.h"
#include "client/connect/log_follow.h"
#include "client/connect/outcome.h"
#include "client/spec/spec_print.h"
#include "client/text/job_text.h"
#include "client/text/log_choice.h"
#include "client/text/message_output.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxSortedBytes = 256 << 20;  // Fits in the memory of a laptop.

std::optional<int> CheckPrevious(const v1::Job& job, Session* session) {
  if (!session->line().previous || job.attempt() > 1) return std::nullopt;
  session->console().err << "fsdpctl: " << job.id() << " has had "
                         << (job.attempt() == 0 ? "no attempt" : "only one attempt")
                         << "; --previous requires two [ATTEMPT_NOT_FOUND]\n";
  return kExitNotFound;
}

v1::TailLogsRequest RequestOf(const CommandLine& line, const v1::Job& job) {
  v1::TailLogsRequest request;
  request.set_id(job.id());
  if (line.rank.has_value()) request.set_rank(*line.rank);
  if (line.attempt.has_value()) request.set_attempt(*line.attempt);
  if (line.previous) request.set_attempt(job.attempt() - 1);
  request.set_follow(line.follow);
  request.set_tail_lines(line.tail);
  request.set_evidence(line.evidence);
  return request;
}

}  // namespace

int RunLogs(Session* session) {
  const CommandLine& line = session->line();
  FSDPD_ASSIGN_OR_FAIL(const v1::Job job, session, FindJob(&session->client(), line.job));
  if (const std::optional<int> code = CheckPrevious(job, session)) return *code;
  const bool name_ranks = !line.rank.has_value() && WorldSizeOf(job) > 1;
  Console& console = session->console();
  std::ostream& out = console.out;
  const auto print = [&](const v1::TailLogsResponse& log) {
    if (line.output != "table") {
      out << RenderedItem(log, line.output);
    } else {
      if (name_ranks) out << "[rank " << log.rank() << "] ";
      out << log.line() << "\n";
    }
    if (line.follow) out << std::flush;
  };
  absl::Time since = absl::InfinitePast();
  if (!line.since.empty()) {
    const absl::StatusOr<absl::Time> asked = ParseSince(line.since, console.clock->Wall());
    FSDPD_CHECK(asked.ok());
    since = *asked;
  }
  std::optional<LogPattern> pattern;
  if (!line.grep.empty()) {
    absl::StatusOr<LogPattern> parsed = LogPattern::Parse(line.grep);
    FSDPD_CHECK(parsed.ok());
    pattern = *parsed;
  }
  LogFilter filter(since, pattern.has_value() ? &*pattern : nullptr, print);
  bool has_other_lines = false;
  const auto take = [&](const v1::TailLogsResponse& log) {
    has_other_lines |= line.evidence && !log.evidence();
    if (!has_other_lines) filter.Take(log);
  };
  const auto notify = [&](const std::string& notice) { console.err << notice << "\n" << std::flush; };
  const v1::TailLogsRequest request = RequestOf(line, job);
  if (name_ranks && !line.follow) filter.EnableSorting(kMaxSortedBytes);
  const absl::Status status =
      line.follow ? FollowLogs(&session->client(), request, {}, console.interrupt, take, notify)
                  : session->client().TailLogs(request, console.interrupt, take);
  filter.End();
  if (filter.overflowed())
    console.err << "too many lines to sort: after the first " << (kMaxSortedBytes >> 20)
                << " MiB, lines are in the order received; use --since, --tail or --rank\n";
  if (!status.ok()) return session->Fail(status);
  if (!has_other_lines) return kExitOk;
  console.err
      << "fsdpctl: --evidence is not supported by this coordinator, which is an older release; see the "
         "files rank-N.hang.txt next to the logs on the nodes\n";
  return kExitFailed;
}

}  // namespace fsdpd
