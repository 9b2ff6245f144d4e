// Command `top`: live overview of running jobs, redrawn on a terminal until interrupted; printed once
// otherwise.
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <algorithm>

#include "base/check.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/job_choice.h"
#include "client/connect/job_follow.h"
#include "client/connect/outcome.h"
#include "client/text/top_text.h"

namespace fsdpd {
namespace {

constexpr char kHome[] = "\x1b[H";
constexpr char kClearLine[] = "\x1b[K";
constexpr char kClearBelow[] = "\x1b[J";

absl::StatusOr<std::string> FetchText(Session* session) {
  const CommandLine& line = session->line();
  v1::ListJobsRequest request;
  request.set_project(line.project);
  request.set_all_projects(line.all_projects);
  for (const v1::JobState state :
       {v1::JOB_STATE_QUEUED, v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING, v1::JOB_STATE_CANCELLING,
        v1::JOB_STATE_STOPPING, v1::JOB_STATE_PAUSING, v1::JOB_STATE_PREFLIGHT})
    request.add_states(state);
  FSDPD_ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, ListAllJobs(&session->client(), request));
  FSDPD_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, session->client().ListNodes({}));
  return TopText({jobs.jobs().begin(), jobs.jobs().end()}, {nodes.nodes().begin(), nodes.nodes().end()},
                 session->console().clock->Wall(), session->console().width());
}

// Overwrites the previous screen line by line instead of clearing it first, which would flicker.
std::string Redraw(const std::string& text) {
  std::string drawn = kHome;
  for (const char c : text) absl::StrAppend(&drawn, c == '\n' ? kClearLine : "", std::string(1, c));
  return drawn + kClearBelow;
}

}  // namespace

int RunTop(Session* session) {
  Console& console = session->console();
  Outage outage;
  std::string shown;
  while (true) {
    const absl::StatusOr<std::string> text = FetchText(session);
    const bool tolerable = outage.IsTolerable(text.status()) && !shown.empty();
    if (!text.ok() && !tolerable) return session->Fail(text.status());
    if (text.ok()) shown = *text;
    if (!console.terminal || session->line().once) {
      console.out << shown;
      return kExitOk;
    }
    console.out << Redraw(text.ok() ? shown : absl::StrCat(shown, "connection lost; reconnecting\n"))
                << std::flush;
    const absl::Duration pause = absl::Seconds(session->line().every_seconds);
    if (console.interrupt->WaitFor(absl::ToChronoNanoseconds(pause))) return kExitInterrupted;
  }
}

}  // namespace fsdpd
