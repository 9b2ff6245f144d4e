// Commands `events` and `drain`. The progress of a drain is the list of jobs that are still on the node.
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/coordinator_client.h"
#include "client/connect/job_choice.h"
#include "client/connect/job_follow.h"
#include "client/connect/outcome.h"
#include "client/spec/spec_print.h"
#include "client/text/job_text.h"
#include "client/text/log_choice.h"
#include "client/text/message_output.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

constexpr auto kPollInterval = std::chrono::seconds(1);

// "attempt-failed"
std::string KindName(v1::EventKind kind) {
  std::string name = absl::AsciiStrToLower(v1::EventKind_Name(kind));
  name = std::string(absl::StripPrefix(name, "event_kind_"));
  std::replace(name.begin(), name.end(), '_', '-');
  return name.empty() ? absl::StrCat("#", static_cast<int>(kind)) : name;
}

// One line per event. It is printed immediately, so columns have fixed widths.
std::string EventLine(const v1::Event& event) {
  std::string of = event.job();
  if (event.attempt() > 0) absl::StrAppend(&of, " attempt ", event.attempt());
  if (!event.node().empty()) absl::StrAppend(&of, of.empty() ? "" : " on ", event.node());
  std::string cause = absl::AsciiStrToLower(v1::FailureCause_Name(event.cause()));
  cause = std::string(absl::StripPrefix(cause, "failure_cause_"));
  const bool has_cause = event.cause() != v1::FAILURE_CAUSE_UNSPECIFIED;
  return absl::StrFormat(
      "%d  %s  %-16s  %s%s%s%s\n", event.sequence(),
      absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(event.unix_nanos()), absl::UTCTimeZone()),
      KindName(event.kind()), OneLine(of), event.message().empty() ? "" : ": ",
      has_cause ? absl::StrCat("(", cause, ") ") : std::string(), OneLine(event.message()));
}

void PrintEvent(Session* session, const v1::Event& event) {
  const std::string& output = session->line().output;
  session->console().out << (output == "table" ? EventLine(event) : RenderedItem(event, output));
}

// Calls `on_event` with the events of all pages until it returns false. Returns the cursor after the last
// one.
absl::StatusOr<int64_t> ForEachEvent(Session* session, v1::ListEventsRequest request,
                                     const std::function<bool(const v1::Event&)>& on_event) {
  for (;;) {
    FSDPD_ASSIGN_OR_RETURN(const v1::ListEventsResponse page, session->client().ListEvents(request));
    for (const v1::Event& event : page.events()) {
      if (!on_event(event)) return page.cursor();
    }
    if (page.next_page_token().empty()) return page.cursor();
    request.set_page_token(page.next_page_token());
    request.clear_after();
  }
}

// Whether events of a deleted job or node exist. An EVENTS_DELETED event marks a gap in the event log and
// matches every request, so it only counts if it names the requested job.
absl::StatusOr<bool> HasEvents(Session* session, const std::string& job, const std::string& node) {
  v1::ListEventsRequest request;
  request.set_job(job);
  request.set_node(node);
  bool found = false;
  const auto status = ForEachEvent(session, request, [&](const v1::Event& event) {
    found = event.kind() != v1::EVENT_KIND_EVENTS_DELETED || (!job.empty() && event.job() == job);
    return !found;
  });
  FSDPD_RETURN_IF_ERROR(status.status());
  return found;
}

// Checks that the values of --job, --node and --after exist, and completes the prefix of a job id.
absl::Status ResolveSelection(Session* session, std::string* job) {
  const CommandLine& line = session->line();
  *job = line.job;
  if (!line.job.empty()) {
    const absl::StatusOr<v1::Job> found = FindJob(&session->client(), line.job);
    if (found.ok() && !found->id().empty()) *job = found->id();
    if (absl::IsNotFound(found.status())) {
      FSDPD_ASSIGN_OR_RETURN(const bool has_events, HasEvents(session, line.job, ""));
      if (!has_events) return found.status();
    }
  }
  if (!line.node.empty()) {
    const absl::Status found = FindNode(&session->client(), line.node).status();
    if (absl::IsNotFound(found)) {
      FSDPD_ASSIGN_OR_RETURN(const bool has_events, HasEvents(session, "", line.node));
      if (!has_events) return found;
    }
  }
  if (line.after_event == 0) return absl::OkStatus();
  // An empty page has the newest cursor. A coordinator of an older release returns 0.
  v1::ListEventsRequest newest;
  newest.set_since_unix_nanos(std::numeric_limits<int64_t>::max());
  FSDPD_ASSIGN_OR_RETURN(const v1::ListEventsResponse none, session->client().ListEvents(newest));
  if (line.after_event <= none.cursor()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("--after: event ", line.after_event,
                                          " does not exist yet; the newest is ", none.cursor()));
}

// Prints the stored events of all pages. Returns the cursor after the last one.
absl::StatusOr<int64_t> PrintStored(Session* session, const std::string& job) {
  const CommandLine& line = session->line();
  v1::ListEventsRequest request;
  request.set_job(job);
  request.set_node(line.node);
  request.set_after(line.after_event);
  if (!line.since.empty())
    request.set_since_unix_nanos(
        absl::ToUnixNanos(*ParseSince(line.since, session->console().clock->Wall())));
  return ForEachEvent(session, std::move(request), [&](const v1::Event& event) {
    PrintEvent(session, event);
    return true;
  });
}

// Prints new events. After a reconnect it resumes from the last cursor, so that no event is missed or
// repeated.
absl::Status FollowEvents(Session* session, const std::string& job, int64_t cursor) {
  Console& console = session->console();
  const FollowOptions options;
  v1::WatchEventsRequest request;
  request.set_job(job);
  request.set_node(session->line().node);
  request.set_after(cursor);
  absl::Time lost_since = absl::InfiniteFuture();
  for (;;) {
    const absl::Status status =
        session->client().WatchEvents(request, console.interrupt, [&](const v1::WatchEventsResponse& update) {
          if (lost_since != absl::InfiniteFuture()) console.err << "connected again\n";
          lost_since = absl::InfiniteFuture();
          request.set_after(update.cursor());
          if (!update.has_event()) return;
          PrintEvent(session, update.event());
          console.out.flush();
        });
    if (console.interrupt->fired()) return absl::CancelledError("interrupted");
    // A coordinator that shuts down may cancel the stream.
    if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;
    if (lost_since == absl::InfiniteFuture()) {
      lost_since = absl::Now();
      console.err << "connection lost (" << OneLine(status.message()) << "); reconnecting\n";
    }
    if (absl::Now() - lost_since >= options.reconnect_for) return status;
    if (console.interrupt->WaitFor(absl::ToChronoNanoseconds(options.pause)))
      return absl::CancelledError("interrupted");
  }
}

int RunEvents(Session* session) {
  std::string job;
  if (const absl::Status found = ResolveSelection(session, &job); !found.ok()) return session->Fail(found);
  FSDPD_ASSIGN_OR_FAIL(const int64_t cursor, session, PrintStored(session, job));
  if (!session->line().follow) return kExitOk;
  session->console().out.flush();
  const absl::Status ended = FollowEvents(session, job, cursor);
  return absl::IsCancelled(ended) ? kExitInterrupted : session->Fail(ended);
}

// Prints how each job left the node. A drained node does not show that a failed save lost steps.
absl::Status PrintLeft(Session* session, const v1::Node& node) {
  v1::ListEventsRequest request;
  request.set_node(node.name());
  request.set_since_unix_nanos(node.cordon().drain().unix_nanos());
  const auto print = [&](const v1::Event& event) {
    if (event.kind() == v1::EVENT_KIND_RANKS_EXITED)
      session->console().err << OneLine(absl::StrCat(event.job(), ": ", event.message())) << "\n";
    return true;
  };
  return ForEachEvent(session, request, print).status();
}

int PrintDrained(Session* session, const v1::Node& node) {
  const v1::Cordon::Drain& drain = node.cordon().drain();
  std::string text =
      absl::StrCat(node.name(), drain.empty_unix_nanos() > 0 ? " is empty" : " is being drained");
  if (drain.empty_unix_nanos() == 0 && !drain.jobs().empty())
    absl::StrAppend(&text, "; remaining jobs: ", absl::StrJoin(drain.jobs(), ", "));
  const std::string& output = session->line().output;
  session->console().out << (output == "table" ? absl::StrCat(OneLine(text), "\n") : Rendered(node, output));
  return kExitOk;
}

// Why a job is still on the node; nullopt if the coordinator does not respond.
std::optional<std::string> ReasonOnNode(Session* session, const std::string& id) {
  const absl::StatusOr<v1::Job> read = GetJob(&session->client(), id);
  if (absl::IsUnavailable(read.status()) || absl::IsDeadlineExceeded(read.status())) return std::nullopt;
  if (!read.ok()) return "";
  const v1::Job& job = *read;
  const bool trains = job.state() == v1::JOB_STATE_STARTING || job.state() == v1::JOB_STATE_RUNNING;
  if (trains && job.has_failed_checkpoint())
    return absl::StrCat(": its checkpoint of step ", job.failed_checkpoint().step(),
                        " could not be written: ", job.failed_checkpoint().error(),
                        "; fix the cause, or run `fsdpctl drain ", session->line().node,
                        " --force` to move it without saving");
  return absl::StrCat(" (", StateName(job.state()), job.reason().empty() ? "" : ": ", job.reason(), ")");
}

// Reports on stderr what blocks a drain, whenever that changes.
class DrainScreen {
 public:
  explicit DrainScreen(Session* session) : session_(*session) {}

  void Show(const v1::Node& node) {
    const std::string away = node.connected() || node.not_ready() ? ""
                             : node.left()                        ? " has left"
                                                                  : " is lost";
    if (away != std::exchange(away_, away) && !away.empty())
      Print(absl::StrCat(node.name(), away, "; its remaining ranks are unknown until its agent reconnects"));
    std::map<std::string, std::string> reasons;
    for (const std::string& job : node.cordon().drain().jobs()) {
      if (reasons.size() == kMaxJobsPerPoll) break;
      const std::optional<std::string> why = ReasonOnNode(&session_, job);
      if (!why.has_value()) return;  // No response now; the next poll tries again.
      reasons[job] = *why;
      const auto known = reported_.find(job);
      if (known == reported_.end() || known->second != *why) Print(absl::StrCat("waiting for ", job, *why));
      reported_[job] = *why;
    }
    reported_ = std::move(reasons);
  }

 private:
  static constexpr size_t kMaxJobsPerPoll = 16;  // Each job is an RPC; few nodes have more jobs.

  void Print(const std::string& text) { session_.console().err << OneLine(text) << "\n" << std::flush; }

  Session& session_;
  std::string away_;
  std::map<std::string, std::string> reported_;
};

int RunDrain(Session* session) {
  const CommandLine& line = session->line();
  Console& console = session->console();
  v1::DrainNodeRequest request;
  request.set_node(line.node);
  request.set_reason(line.reason);
  request.set_force(line.force);
  if (line.grace_seconds.has_value()) request.set_grace_seconds(*line.grace_seconds);
  FSDPD_ASSIGN_OR_FAIL(v1::DrainNodeResponse response, session, session->client().DrainNode(request));
  v1::Node node = std::move(*response.mutable_node());
  DrainScreen screen(session);
  Outage outage;
  const absl::Time until = line.wait_timeout_seconds.has_value()
                               ? absl::Now() + absl::Seconds(*line.wait_timeout_seconds)
                               : absl::InfiniteFuture();
  while (line.wait && node.cordon().has_drain() && node.cordon().drain().empty_unix_nanos() == 0) {
    screen.Show(node);
    if (absl::Now() >= until) {
      console.err << "fsdpctl: " << OneLine(node.name())
                  << " is not empty after --timeout; the drain continues [TIMEOUT]\n";
      return kExitTimeout;
    }
    if (console.interrupt->WaitFor(kPollInterval)) return kExitInterrupted;
    absl::StatusOr<v1::Node> now = FindNode(&session->client(), line.node);
    if (outage.IsTolerable(now.status())) continue;
    if (!now.ok()) return session->Fail(now.status());
    node = *std::move(now);
  }
  if (line.wait && node.cordon().has_drain()) {
    const absl::Status left = PrintLeft(session, node);
    if (!left.ok()) console.err << "fsdpctl: cannot read the events of the drain: " << left.message() << "\n";
  }
  if (!line.wait || node.cordon().has_drain()) return PrintDrained(session, node);
  console.err << "fsdpctl: " << OneLine(node.name())
              << ": the drain was ended by an uncordon [DRAIN_ENDED]\n";
  return kExitFailed;
}

}  // namespace

std::optional<int> RunEventCommand(Session* session) {
  if (session->line().command == "events") return RunEvents(session);
  if (session->line().command == "drain") return RunDrain(session);
  return std::nullopt;
}

}  // namespace fsdpd
