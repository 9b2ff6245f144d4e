// Command `get`: lists jobs as a table, as data, or as a spec for `submit -f -`, once or with -w on each
// change.
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/job_choice.h"
#include "client/connect/job_follow.h"
#include "client/connect/outcome.h"
#include "client/spec/spec_array.h"
#include "client/spec/spec_print.h"
#include "client/text/job_text.h"
#include "client/text/json_path.h"
#include "client/text/message_output.h"

namespace fsdpd {

absl::StatusOr<Selector> SelectorOf(const CommandLine& line) {
  absl::StatusOr<Selector> selector = ParseSelector(line.selector);
  if (selector.ok()) return selector;
  return absl::InvalidArgumentError(absl::StrCat("--selector: ", selector.status().message()));
}

absl::StatusOr<v1::ListJobsResponse> ListSelectedJobs(Session* session) {
  const CommandLine& line = session->line();
  v1::ListJobsRequest request;
  request.set_project(line.project);
  request.set_selector(line.selector);
  request.set_order_by(line.order_by);
  // The id of an array is unique across projects.
  request.set_all_projects(line.all_projects || (line.project.empty() && !line.array.empty()));
  for (const std::string& name : line.states) {
    v1::JobState state;
    FSDPD_CHECK(v1::JobState_Parse("JOB_STATE_" + absl::AsciiStrToUpper(name), &state));
    request.add_states(state);
  }
  // Sorting and filtering on the client need the complete list, so the limit applies afterwards.
  const bool as_it_comes = line.sort_by.empty() && line.array.empty();
  FSDPD_ASSIGN_OR_RETURN(v1::ListJobsResponse all,
                         ListAllJobs(&session->client(), request, as_it_comes ? line.limit.value_or(0) : 0));
  // Apply the selector here too: an old coordinator without labels ignores it and returns all jobs, and
  // `cancel` would then cancel them.
  FSDPD_ASSIGN_OR_RETURN(const Selector selector, SelectorOf(line));
  v1::ListJobsResponse fetched;
  for (v1::Job& job : *all.mutable_jobs()) {
    if (!line.order_by.empty() && job.etag().empty())
      return absl::UnimplementedError(
          "--order-by is not supported by this coordinator, which is an older release");
    if (IsInArray(job.request_id(), line.array) && Matches(selector, job.labels()))
      *fetched.add_jobs() = std::move(job);
  }
  return fetched;
}

int ReportUnknownArray(Session* session) {
  session->console().err << "fsdpctl: no jobs in array '" << session->line().array << "' [JOB_NOT_FOUND]\n";
  return kExitNotFound;
}

namespace {

constexpr absl::Duration kPollInterval = absl::Seconds(1);
constexpr int kRestFactor = 10;  // Bounds the time spent in polls to a tenth.

// Sorts by the value at a field path. Numbers are compared numerically; jobs without a value come last.
absl::Status SortJobs(std::string by, v1::ListJobsResponse* list) {
  if (by.empty()) return absl::OkStatus();
  const bool falling = by[0] == '-';
  if (falling) by.erase(0, 1);
  FSDPD_ASSIGN_OR_RETURN(const JsonPath path, JsonPath::ParsePath(by));
  struct Keyed {
    std::string text;
    bool is_number = false;
    double number = 0;
    v1::Job job;
  };
  std::vector<Keyed> all;
  for (v1::Job& job : *list->mutable_jobs()) {
    Keyed keyed;
    const absl::StatusOr<std::string> text = path.Render(job);
    if (!text.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sort-by: ", absl::StripPrefix(text.status().message(), "jsonpath: "),
                       "; use a field of -o json, such as create_unix_nanos or last_step.loss"));
    }
    keyed.text = *text;
    keyed.is_number = absl::SimpleAtod(keyed.text, &keyed.number);
    keyed.job = std::move(job);
    all.push_back(std::move(keyed));
  }
  std::stable_sort(all.begin(), all.end(), [falling](const Keyed& a, const Keyed& b) {
    if (a.text.empty() != b.text.empty()) return b.text.empty();
    const Keyed &first = falling ? b : a, &second = falling ? a : b;
    if (a.is_number != b.is_number) return first.is_number;
    return a.is_number ? first.number < second.number : first.text < second.text;
  });
  list->clear_jobs();
  for (Keyed& keyed : all) *list->add_jobs() = std::move(keyed.job);
  return absl::OkStatus();
}

JobColumns ColumnsOf(const CommandLine& line) {
  return line.output == "wide" ? JobColumns::kWide
         : line.show_labels    ? JobColumns::kLabels
                               : JobColumns::kDefault;
}

struct Fetched {
  v1::ListJobsResponse list;
  absl::Status missing;  // The error of the last named job that does not exist.
};

// `report_missing`: reports each named job that does not exist.
absl::StatusOr<Fetched> Fetch(Session* session, bool report_missing) {
  const CommandLine& line = session->line();
  Fetched fetched;
  if (line.jobs.empty()) {
    FSDPD_ASSIGN_OR_RETURN(fetched.list, ListSelectedJobs(session));
  }
  // A missing job does not prevent the output of the others.
  for (const std::string& id : line.jobs) {
    const absl::StatusOr<v1::Job> job = FindJob(&session->client(), id);
    if (!job.ok() && !absl::IsNotFound(job.status())) return job.status();
    if (job.ok()) *fetched.list.add_jobs() = *job;
    if (!job.ok()) fetched.missing = job.status();
    if (!job.ok() && report_missing) session->Fail(job.status());
  }
  FSDPD_RETURN_IF_ERROR(SortJobs(line.sort_by, &fetched.list));
  const int most = line.limit.value_or(fetched.list.jobs_size());
  if (most < fetched.list.jobs_size())
    fetched.list.mutable_jobs()->DeleteSubrange(most, fetched.list.jobs_size() - most);
  return fetched;
}

int PrintSpec(Session* session, const v1::ListJobsResponse& list) {
  if (list.jobs_size() != 1) {
    session->console().err << "fsdpctl: -o spec requires exactly one job, for example `fsdpctl get JOB -o "
                              "spec` [INVALID_FLAG]\n";
    return kExitUsage;
  }
  session->console().out << ToYaml(list.jobs(0).spec());
  return kExitOk;
}

// Prints a row or a document for each job that has changed since it was last printed.
class ChangeScreen {
 public:
  explicit ChangeScreen(Session* session) : session_(*session) {}

  absl::Status Show(const v1::ListJobsResponse& list) {
    const std::string& output = session_.line().output;
    Console& console = session_.console();
    const bool table = output == "table" || output == "wide";
    std::vector<std::string> rows;
    if (table) {
      rows = JobRows({list.jobs().begin(), list.jobs().end()}, console.clock->Wall(), console.width(),
                     ColumnsOf(session_.line()));
      if (std::exchange(first_, false)) console.out << rows.front();
    }
    std::map<std::string, int64_t> now;
    for (int i = 0; i < list.jobs_size(); ++i) {
      const v1::Job& job = list.jobs(i);
      now[job.id()] = job.revision();
      const auto known = shown_.find(job.id());
      if (known != shown_.end() && known->second == job.revision()) continue;
      if (table) {
        console.out << rows[static_cast<size_t>(i) + 1];
      } else {
        FSDPD_RETURN_IF_ERROR(ShowPiece(job));
      }
    }
    for (const auto& [id, revision] : shown_) {
      if (now.count(id) == 0) console.err << id << " is no longer listed\n" << std::flush;
    }
    shown_ = std::move(now);
    console.out << std::flush;
    return absl::OkStatus();
  }

 private:
  absl::Status ShowPiece(const v1::Job& job) {
    const std::string& output = session_.line().output;
    std::ostream& out = session_.console().out;
    if (output == "name") {
      out << job.id() << "\n";
    } else if (IsData(output)) {
      out << RenderedItem(job, output);
    } else {
      FSDPD_ASSIGN_OR_RETURN(const std::string text, session_.DataOf(job));
      out << text;
    }
    return absl::OkStatus();
  }

  Session& session_;
  bool first_ = true;
  std::map<std::string, int64_t> shown_;  // Revision by id.
};

// Runs until interrupted. Tolerates an unreachable coordinator for as long as FollowJob() does.
int WatchJobs(Session* session) {
  Console& console = session->console();
  ChangeScreen screen(session);
  Outage outage;
  bool lost = false, first = true;
  while (true) {
    const absl::Time poll_start = absl::Now();
    const absl::StatusOr<Fetched> fetched = Fetch(session, std::exchange(first, false));
    const bool tolerable = outage.IsTolerable(fetched.status());
    if (!fetched.ok() && !tolerable) return session->Fail(fetched.status());
    if (fetched.ok()) {
      if (std::exchange(lost, false)) console.err << "connected again\n" << std::flush;
      if (fetched->list.jobs().empty() && !fetched->missing.ok()) return kExitNotFound;
      if (const absl::Status shown = screen.Show(fetched->list); !shown.ok()) return session->Fail(shown);
    } else if (!std::exchange(lost, true)) {
      console.err << "connection lost (" << fetched.status().message() << "); reconnecting\n" << std::flush;
    }
    // The duration of a failed call does not indicate the cost of a poll.
    const absl::Duration pause = fetched.ok()
                                     ? std::max(kPollInterval, kRestFactor * (absl::Now() - poll_start))
                                     : FollowOptions().pause;
    if (console.interrupt->WaitFor(absl::ToChronoNanoseconds(pause))) return kExitInterrupted;
  }
}

}  // namespace

int RunGet(Session* session) {
  const CommandLine& line = session->line();
  Console& console = session->console();
  if (line.step_history) return RunStepHistory(session);
  if (line.step_timeline) return RunStepTimeline(session);
  if (line.watch) return WatchJobs(session);
  FSDPD_ASSIGN_OR_FAIL(const Fetched fetched, session, Fetch(session, /*report_missing=*/true));
  const v1::ListJobsResponse& list = fetched.list;
  const int code = fetched.missing.ok() ? kExitOk : kExitNotFound;
  if (code != kExitOk && list.jobs().empty()) return code;
  // With --state, the array may exist and have no job in these states.
  if (list.jobs().empty() && !line.array.empty() && line.states.empty()) return ReportUnknownArray(session);
  if (line.output == "spec") return PrintSpec(session, list);
  if (line.output == "name") {
    for (const v1::Job& job : list.jobs()) console.out << job.id() << "\n";
  } else if (line.output == "table" || line.output == "wide") {
    console.out << JobTable({list.jobs().begin(), list.jobs().end()}, console.clock->Wall(), console.width(),
                            ColumnsOf(line));
  } else {
    const int shown = line.jobs.size() == 1 ? session->Show(list.jobs(0)) : session->Show(list);
    if (shown != kExitOk) return shown;
  }
  return code;
}

}  // namespace fsdpd
