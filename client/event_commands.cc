// What has happened: events. And drain, whose progress is the jobs that are still on the node.
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "client/commands.h"
#include "client/coordinator_client.h"
#include "client/job_choice.h"
#include "client/job_follow.h"
#include "client/job_text.h"
#include "client/log_choice.h"
#include "client/message_output.h"
#include "client/outcome.h"
#include "client/session.h"
#include "client/spec_print.h"
#include "client/text_table.h"

namespace fsdpd {
namespace {

constexpr auto kLookEvery = std::chrono::seconds(1);

// "attempt-failed"
std::string KindName(v1::EventKind kind) {
  std::string name = absl::AsciiStrToLower(v1::EventKind_Name(kind));
  name = std::string(absl::StripPrefix(name, "event_kind_"));
  std::replace(name.begin(), name.end(), '_', '-');
  return name.empty() ? absl::StrCat("#", static_cast<int>(kind)) : name;
}

// One line each, as they come: no column waits for another row.
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
  session->console().out << (output == "table"  ? EventLine(event)
                             : output == "json" ? ToJsonLine(event) + "\n"
                                                : "---\n" + Rendered(event, output));
}

absl::StatusOr<v1::Node> LookAt(Session* session, const std::string& name) {
  absl::StatusOr<v1::ListNodesResponse> response = session->client().ListNodes({});
  if (!response.ok()) return response.status();
  for (v1::Node& node : *response->mutable_nodes()) {
    if (node.name() == name) return std::move(node);
  }
  return absl::NotFoundError(absl::StrCat("no node '", name, "'"));
}

// Whether anything is told of a job that is deleted, or a node that is forgotten. A hole is told to whoever
// might have wanted what it hides: it counts where it is of the job that is asked for.
absl::StatusOr<bool> HasEvents(Session* session, const std::string& job, const std::string& node) {
  v1::ListEventsRequest request;
  request.set_job(job);
  request.set_node(node);
  for (;;) {
    FSDPD_ASSIGN_OR_RETURN(const v1::ListEventsResponse page, session->client().ListEvents(request));
    for (const v1::Event& event : page.events()) {
      if (event.kind() != v1::EVENT_KIND_FORGOTTEN || (!job.empty() && event.job() == job)) return true;
    }
    if (page.next_page_token().empty()) return false;
    request.set_page_token(page.next_page_token());
  }
}

// What --job, --node and --after name is there. A job's id becomes whole.
absl::Status CompleteChoice(Session* session, std::string* job) {
  const CommandLine& line = session->line();
  *job = line.job;
  if (!line.job.empty()) {
    const absl::StatusOr<v1::Job> found = FindJob(&session->client(), line.job);
    if (found.ok() && !found->id().empty()) *job = found->id();
    if (absl::IsNotFound(found.status())) {
      FSDPD_ASSIGN_OR_RETURN(const bool is_told, HasEvents(session, line.job, ""));
      if (!is_told) return found.status();
    }
  }
  if (!line.node.empty()) {
    const absl::Status found = LookAt(session, line.node).status();
    if (absl::IsNotFound(found)) {
      FSDPD_ASSIGN_OR_RETURN(const bool is_told, HasEvents(session, "", line.node));
      if (!is_told) return found;
    }
  }
  if (line.after_event == 0) return absl::OkStatus();
  // Coordinators of an older release do not say it.
  v1::ListEventsRequest newest;
  newest.set_since_unix_nanos(std::numeric_limits<int64_t>::max());
  FSDPD_ASSIGN_OR_RETURN(const v1::ListEventsResponse none, session->client().ListEvents(newest));
  if (line.after_event <= none.cursor()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("--after: there is no event ", line.after_event, " yet; the newest is ", none.cursor()));
}

// From one page to the next: the cursor after them all.
absl::StatusOr<int64_t> PrintKept(Session* session, const std::string& job) {
  const CommandLine& line = session->line();
  v1::ListEventsRequest request;
  request.set_job(job);
  request.set_node(line.node);
  request.set_after(line.after_event);
  request.set_filter(line.filter);
  if (!line.since.empty())
    request.set_since_unix_nanos(
        absl::ToUnixNanos(*ParseSince(line.since, session->console().clock->Wall())));
  for (;;) {
    const absl::StatusOr<v1::ListEventsResponse> page = session->client().ListEvents(request);
    if (!page.ok()) return page.status();
    for (const v1::Event& event : page->events()) PrintEvent(session, event);
    if (page->next_page_token().empty()) return page->cursor();
    request.set_page_token(page->next_page_token());
    request.clear_after();
  }
}

// Goes on after the newest cursor that came, so that nothing is missed or shown twice.
absl::Status FollowEvents(Session* session, const std::string& job, int64_t cursor) {
  Console& console = session->console();
  const FollowOptions options;
  v1::WatchEventsRequest request;
  request.set_job(job);
  request.set_node(session->line().node);
  request.set_after(cursor);
  request.set_filter(session->line().filter);
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
    // A coordinator that stops may cancel the stream.
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
  if (const absl::Status there = CompleteChoice(session, &job); !there.ok()) return session->Fail(there);
  const absl::StatusOr<int64_t> cursor = PrintKept(session, job);
  if (!cursor.ok()) return session->Fail(cursor.status());
  if (!session->line().follow) return kExitOk;
  session->console().out.flush();
  const absl::Status ended = FollowEvents(session, job, *cursor);
  return absl::IsCancelled(ended) ? kExitInterrupted : session->Fail(ended);
}

// What became of each job as it left: a save that failed cost it steps, and an empty node does not show that.
absl::Status PrintLeft(Session* session, const v1::Node& node) {
  v1::ListEventsRequest request;
  request.set_node(node.name());
  request.set_since_unix_nanos(node.cordon().drain().unix_nanos());
  for (;;) {
    const absl::StatusOr<v1::ListEventsResponse> page = session->client().ListEvents(request);
    if (!page.ok()) return page.status();
    for (const v1::Event& event : page->events()) {
      if (event.kind() == v1::EVENT_KIND_LEFT)
        session->console().err << OneLine(absl::StrCat(event.job(), ": ", event.message())) << "\n";
    }
    if (page->next_page_token().empty()) return absl::OkStatus();
    request.set_page_token(page->next_page_token());
  }
}

int PrintDrained(Session* session, const v1::Node& node) {
  const v1::Cordon::Drain& drain = node.cordon().drain();
  std::string text =
      absl::StrCat(node.name(), drain.empty_unix_nanos() > 0 ? " is empty" : " is being drained");
  if (drain.empty_unix_nanos() == 0 && !drain.jobs().empty())
    absl::StrAppend(&text, "; still there: ", absl::StrJoin(drain.jobs(), ", "));
  const std::string& output = session->line().output;
  session->console().out << (output == "table" ? absl::StrCat(OneLine(text), "\n") : Rendered(node, output));
  return kExitOk;
}

// What becomes of a job that is still on the node, for the one who waits; nothing where nobody answers.
std::optional<std::string> WhyThere(Session* session, const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  const absl::StatusOr<v1::GetJobResponse> response = session->client().GetJob(request);
  if (absl::IsUnavailable(response.status()) || absl::IsDeadlineExceeded(response.status()))
    return std::nullopt;
  if (!response.ok()) return "";
  const v1::Job& job = response->job();
  const bool trains = job.state() == v1::JOB_STATE_STARTING || job.state() == v1::JOB_STATE_RUNNING;
  if (trains && job.has_failed_checkpoint())
    return absl::StrCat(" stays: its checkpoint of step ", job.failed_checkpoint().step(),
                        " could not be written: ", job.failed_checkpoint().error(),
                        "; fix that, or run `fsdpctl drain ", session->line().node,
                        " --force` to have it leave without a save");
  return absl::StrCat(" (", StateName(job.state()), job.reason().empty() ? "" : ": ", job.reason(), ")");
}

// Says on stderr what holds a drain up, each thing when it changes.
class DrainScreen {
 public:
  explicit DrainScreen(Session* session) : session_(*session) {}

  void Show(const v1::Node& node) {
    const std::string away = node.connected() || node.awaited() ? "" : node.left() ? " has left" : " is lost";
    if (away != std::exchange(away_, away) && !away.empty())
      Say(absl::StrCat(node.name(), away, ": nobody knows what is left there until its agent is back"));
    std::map<std::string, std::string> there;
    for (const std::string& job : node.cordon().drain().jobs()) {
      if (there.size() == kMaxAsked) break;
      const std::optional<std::string> why = WhyThere(&session_, job);
      if (!why.has_value()) return;  // Nobody answers just now; the next look asks again.
      there[job] = *why;
      const auto known = told_.find(job);
      if (known == told_.end() || known->second != *why) Say(absl::StrCat("still there: ", job, *why));
      told_[job] = *why;
    }
    told_ = std::move(there);
  }

 private:
  static constexpr size_t kMaxAsked = 16;  // In each look; a node seldom has more.

  void Say(const std::string& words) { session_.console().err << OneLine(words) << "\n" << std::flush; }

  Session& session_;
  std::string away_;
  std::map<std::string, std::string> told_;
};

int RunDrain(Session* session) {
  const CommandLine& line = session->line();
  Console& console = session->console();
  v1::DrainNodeRequest request;
  request.set_node(line.node);
  request.set_reason(line.reason);
  request.set_force(line.force);
  if (line.grace_seconds.has_value()) request.set_grace_seconds(*line.grace_seconds);
  const absl::StatusOr<v1::DrainNodeResponse> response = session->client().DrainNode(request);
  if (!response.ok()) return session->Fail(response.status());
  v1::Node node = response->node();
  DrainScreen screen(session);
  Outage outage;
  const absl::Time until = line.patience_seconds.has_value()
                               ? absl::Now() + absl::Seconds(*line.patience_seconds)
                               : absl::InfiniteFuture();
  while (line.wait && node.cordon().has_drain() && node.cordon().drain().empty_unix_nanos() == 0) {
    screen.Show(node);
    if (absl::Now() >= until) {
      console.err << "fsdpctl: " << OneLine(node.name())
                  << " is not empty after the --timeout; the drain goes on\n";
      return kExitTimeout;
    }
    if (console.interrupt->WaitFor(kLookEvery)) return kExitInterrupted;
    absl::StatusOr<v1::Node> now = LookAt(session, line.node);
    if (outage.IsTolerable(now.status())) continue;
    if (!now.ok()) return session->Fail(now.status());
    node = *std::move(now);
  }
  if (line.wait && node.cordon().has_drain()) {
    const absl::Status left = PrintLeft(session, node);
    if (!left.ok()) console.err << "fsdpctl: what it lost cannot be read: " << left.message() << "\n";
  }
  if (!line.wait || node.cordon().has_drain()) return PrintDrained(session, node);
  console.err << "fsdpctl: " << OneLine(node.name()) << " is drained no more: somebody has opened it\n";
  return kExitFailed;
}

}  // namespace

std::optional<int> RunEventCommand(Session* session) {
  if (session->line().command == "events") return RunEvents(session);
  if (session->line().command == "drain") return RunDrain(session);
  return std::nullopt;
}

}  // namespace fsdpd
