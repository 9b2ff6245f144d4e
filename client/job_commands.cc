#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include "base/check.h"
#include "base/version.h"
#include "client/commands.h"
#include "client/coordinator_client.h"
#include "client/follow_screen.h"
#include "client/job_text.h"
#include "client/log_follow.h"
#include "client/message_output.h"
#include "client/outcome.h"
#include "client/session.h"
#include "client/spec_array.h"
#include "client/spec_print.h"

namespace fsdpd {
namespace {

constexpr int kPageSize = 500;  // The largest that the coordinator gives.

absl::StatusOr<v1::Job> GetJob(Session* session, const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  FSDPD_ASSIGN_OR_RETURN(v1::GetJobResponse response, session->client().GetJob(request));
  return response.job();
}

}  // namespace

absl::StatusOr<v1::ListJobsResponse> ListAsked(Session* session) {
  const CommandLine& line = session->line();
  v1::ListJobsRequest request;
  request.set_page_size(kPageSize);
  request.set_project(line.project);
  // An array is asked for by its name, whose ever it is.
  request.set_all_projects(line.all_projects || (line.project.empty() && !line.array.empty()));
  for (const std::string& name : line.states) {
    v1::JobState state;
    FSDPD_CHECK(v1::JobState_Parse("JOB_STATE_" + absl::AsciiStrToUpper(name), &state));
    request.add_states(state);
  }
  v1::ListJobsResponse all;
  do {
    FSDPD_ASSIGN_OR_RETURN(v1::ListJobsResponse page, session->client().ListJobs(request));
    for (const v1::Job& job : page.jobs()) {
      if (IsOfArray(job.request_id(), line.array)) *all.add_jobs() = job;
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

int NoSuchArray(Session* session) {
  session->console().err << "fsdpctl: no job of an array '" << session->line().array << "'\n";
  return kExitNotFound;
}

namespace {

int RunGet(Session* session) {
  const CommandLine& line = session->line();
  v1::ListJobsResponse list;
  if (line.jobs.empty()) {
    absl::StatusOr<v1::ListJobsResponse> all = ListAsked(session);
    if (!all.ok()) return session->Fail(all.status());
    list = *std::move(all);
    // With states, there may be such an array all the same.
    if (list.jobs().empty() && !line.array.empty() && line.states.empty()) return NoSuchArray(session);
  }
  // Those that are there are shown beside the word about those that are not.
  int code = kExitOk;
  for (const std::string& id : line.jobs) {
    const absl::StatusOr<v1::Job> job = GetJob(session, id);
    if (job.ok()) *list.add_jobs() = *job;
    if (!job.ok()) code = session->Fail(job.status());
    if (!job.ok() && !absl::IsNotFound(job.status())) break;
  }
  if (code != kExitOk && list.jobs().empty()) return code;
  if (line.output == "table") {
    session->console().out << JobTable({list.jobs().begin(), list.jobs().end()},
                                       session->console().clock->Wall(), session->console().width());
  } else if (line.jobs.size() == 1) {
    session->console().out << Rendered(list.jobs(0), line.output);
  } else {
    session->console().out << Rendered(list, line.output);
  }
  return code;
}

int RunDescribe(Session* session) {
  const absl::StatusOr<v1::Job> job = GetJob(session, session->line().job);
  if (!job.ok()) return session->Fail(job.status());
  const std::string& output = session->line().output;
  session->console().out << (output == "table" ? DescribeJob(*job, session->console().clock->Wall())
                                               : Rendered(*job, output));
  return kExitOk;
}

int RunLogs(Session* session) {
  const CommandLine& line = session->line();
  const absl::StatusOr<v1::Job> job = GetJob(session, line.job);
  if (!job.ok()) return session->Fail(job.status());
  v1::TailLogsRequest request;
  request.set_id(line.job);
  if (line.rank.has_value()) request.set_rank(*line.rank);
  if (line.attempt.has_value()) request.set_attempt(*line.attempt);
  request.set_follow(line.follow);
  request.set_tail_lines(line.tail);
  const bool name_ranks = !line.rank.has_value() && WorldOf(*job) > 1;
  std::ostream& out = session->console().out;
  const auto print = [&](const v1::TailLogsResponse& log) {
    if (line.output == "json") {
      out << ToJsonLine(log) << "\n";
    } else if (line.output == "yaml") {
      out << "---\n" << Rendered(log, line.output);
    } else {
      if (name_ranks) out << "[rank " << log.rank() << "] ";
      out << log.line() << "\n";
    }
    if (line.follow) out << std::flush;
  };
  const auto tell = [&](const std::string& words) { session->console().err << words << "\n" << std::flush; };
  const absl::Status status =
      line.follow ? FollowLogs(&session->client(), request, {}, session->console().interrupt, print, tell)
                  : session->client().TailLogs(request, session->console().interrupt, print);
  return status.ok() ? kExitOk : session->Fail(status);
}

int RunNodes(Session* session) {
  const absl::StatusOr<v1::ListNodesResponse> response = session->client().ListNodes({});
  if (!response.ok()) return session->Fail(response.status());
  const std::string& output = session->line().output;
  session->console().out << (output == "table"
                                 ? NodeTable({response->nodes().begin(), response->nodes().end()},
                                             session->console().clock->Wall(), session->console().width())
                                 : Rendered(*response, output));
  return kExitOk;
}

int RunVersion(Session* session) {
  const absl::StatusOr<v1::GetVersionResponse> response = session->client().GetVersion({});
  const std::string& output = session->line().output;
  std::ostream& out = session->console().out;
  if (!response.ok()) {  // Its own is known all the same.
    out << (output == "json"   ? absl::StrCat("{\"client\": \"", kVersion, "\"}\n")
            : output == "yaml" ? absl::StrCat("client: ", kVersion, "\n")
                               : absl::StrCat("client  ", kVersion, "\n"));
    return session->Fail(response.status());
  }
  if (output == "json") {
    out << "{\"client\": \"" << kVersion << "\", \"server\": \"" << response->version() << "\"}\n";
  } else {
    out << (output == "yaml" ? "client: " : "client  ") << kVersion << "\n"
        << (output == "yaml" ? "server: " : "server  ") << response->version() << "\n";
  }
  return kExitOk;
}

}  // namespace

int RunJobCommand(const CommandLine& line, Console* console) {
  Session session(line, console);
  if (const absl::Status status = session.client().Connect(); !status.ok()) {
    if (line.command == "version" && line.output == "table") console->out << "client  " << kVersion << "\n";
    return session.Fail(status);
  }
  if (const std::optional<int> code = RunNodeCommand(&session)) return *code;
  if (line.command == "get") return RunGet(&session);
  if (line.command == "describe") return RunDescribe(&session);
  if (line.command == "watch") return session.Follow(line.job, /*submitted_now=*/false);
  if (line.command == "logs") return RunLogs(&session);
  if (line.command == "trace") return RunTrace(&session);
  if (const std::optional<int> code = RunLifeCommand(&session)) return *code;
  if (line.command == "nodes") return RunNodes(&session);
  FSDPD_CHECK(line.command == "version");
  return RunVersion(&session);
}

}  // namespace fsdpd
