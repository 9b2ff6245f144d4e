// Commands of the job lifecycle: cancel, pause, resume, retry, delete. Each makes one RPC per job, and with
// --wait blocks until its effect is complete.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/coordinator_client.h"
#include "client/connect/job_choice.h"
#include "client/connect/job_follow.h"
#include "client/connect/outcome.h"
#include "client/spec/spec_print.h"
#include "client/text/job_text.h"
#include "client/text/message_output.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

// The wait of one command for its jobs.
struct Wait {
  absl::Time deadline;
  absl::Status connection;  // Why the newest known state of a job may be outdated; OK if it is current.
};

class NewestJob : public JobObserver {
 public:
  NewestJob(v1::Job job, absl::Status* connection) : job_(std::move(job)), connection_(*connection) {}
  const v1::Job& job() const { return job_; }
  void OnJob(const v1::Job& job) override {
    job_ = job;
    connection_ = absl::OkStatus();
  }
  void OnStep(const v1::StepReport&) override {}
  void OnConnectionLost(const absl::Status& why) override { connection_ = why; }
  void OnConnectionBack() override { connection_ = absl::OkStatus(); }

 private:
  v1::Job job_;
  absl::Status& connection_;
};

// Fires `stop` at the deadline, on its own thread.
class Timer {
 public:
  Timer(absl::Time deadline, Interrupt* stop)
      : thread_([this, deadline, stop] {
          // WaitFor takes no infinity.
          const absl::Duration left = std::min(deadline - absl::Now(), absl::Hours(24) * 365);
          if (cancelled_.WaitFor(absl::ToChronoNanoseconds(left))) return;
          has_expired_ = true;
          stop->Fire();
        }) {}
  ~Timer() {
    cancelled_.Fire();
    thread_.join();
  }
  bool HasExpired() const { return has_expired_; }

 private:
  Interrupt cancelled_;
  std::atomic<bool> has_expired_{false};
  std::thread thread_;
};

Wait WaitOf(const CommandLine& line) {
  return {line.flags.count("--timeout") > 0 ? absl::Now() + absl::Seconds(line.timeout_seconds)
                                            : absl::InfiniteFuture(),
          absl::OkStatus()};
}

// The job as `until` wants it (empty: ended), or as it is at the deadline.
absl::StatusOr<v1::Job> AwaitJob(Session* session, const v1::Job& job, Wait* wait,
                                 std::function<bool(const v1::Job&)> until) {
  FollowOptions options;
  options.until = std::move(until);
  NewestJob newest(job, &wait->connection);
  Interrupt stop;
  const Interrupt::Scope scope(session->console().interrupt, [&] { stop.Fire(); });
  Timer timer(wait->deadline, &stop);
  absl::StatusOr<v1::Job> result = FollowJob(&session->client(), job.id(), options, &stop, &newest);
  if (!timer.HasExpired() || !absl::IsCancelled(result.status())) return result;
  // An earlier job may have used up the time, so this one was not watched. No read without a connection: it
  // would take --timeout for each job.
  if (!wait->connection.ok()) return newest.job();
  absl::StatusOr<v1::Job> now = GetJob(&session->client(), job.id());
  if (now.ok()) return now;
  wait->connection = now.status();
  return newest.job();
}

// Reports the error of a job, with its id if the command has several jobs and the message does not name it.
int FailJob(Session* session, const std::string& id, const absl::Status& status) {
  const CommandLine& line = session->line();
  const bool several = line.jobs.size() > 1 || !line.array.empty() || !line.selector.empty();
  return session->Fail(status, several && !absl::StrContains(status.message(), id) ? id : "");
}

int ReportTimeout(Session* session, const v1::Job& job, const Wait& wait, const char* action) {
  session->console().err << "fsdpctl: " << job.id() << " did not " << action << " within --timeout; it is "
                         << StateName(job.state()) << ": " << OneLine(job.reason())
                         << (wait.connection.ok()
                                 ? ""
                                 : absl::StrCat("; this state may be outdated: ",
                                                OneLine(std::string(wait.connection.message()))))
                         << " [TIMEOUT]\n";
  return kExitTimeout;
}

// Prints each job: a line immediately, or with -o json and yaml one document at the end, as `get` does.
class Results {
 public:
  explicit Results(Session* session) : session_(*session) {}

  // `words`: the new state of the job, for the table output.
  int Add(const v1::Job& job, const std::string& words) {
    if (session_.line().output == "table") {
      session_.console().out << job.id() << " " << words << "\n";
    } else {
      *jobs_.add_jobs() = job;
    }
    return kExitOk;
  }
  int End(int code) {
    const CommandLine& line = session_.line();
    if (line.output == "table" || (jobs_.jobs().empty() && code != kExitOk)) return code;
    const bool is_one = line.jobs.size() == 1 && jobs_.jobs_size() == 1;
    session_.console().out << (is_one ? Rendered(jobs_.jobs(0), line.output)
                                      : RenderedLists(jobs_, line.output));
    return code;
  }

 private:
  Session& session_;
  v1::ListJobsResponse jobs_;
};

// Makes `call` for a job with the flags that these commands share. An old coordinator without etags would
// ignore --etag and act unconditionally, so the command is rejected.
template <typename Response, typename Request>
absl::StatusOr<Response> Change(Session* session, const std::string& id,
                                absl::StatusOr<Response> (CoordinatorClient::*call)(const Request&)) {
  const CommandLine& line = session->line();
  Request request;
  request.set_id(id);
  request.set_etag(line.etag);
  if constexpr (!std::is_same_v<Request, v1::DeleteJobRequest>) request.set_reason(line.reason);
  if constexpr (std::is_same_v<Request, v1::CancelJobRequest> || std::is_same_v<Request, v1::PauseJobRequest>)
    if (line.grace_seconds.has_value()) request.set_grace_seconds(*line.grace_seconds);
  if (!line.etag.empty()) {
    FSDPD_ASSIGN_OR_RETURN(const v1::Job job, FindJob(&session->client(), id));
    if (job.etag().empty())
      return absl::UnimplementedError(
          "--etag is not supported by this coordinator, which is an older release");
  }
  return (session->client().*call)(request);
}

// After the wait.
int AddCancelled(Session* session, const v1::Job& job, const Wait& wait, Results* results) {
  results->Add(job, StateName(job.state()));
  return IsEnded(job.state()) ? kExitOk : ReportTimeout(session, job, wait, "end");
}

// `leaving`: takes a job that has not ended yet, with --wait, or awaited here if `leaving` is null.
int CancelOne(Session* session, const std::string& id, Wait* wait, std::vector<v1::Job>* leaving,
              Results* results) {
  const CommandLine& line = session->line();
  const auto response = Change(session, id, &CoordinatorClient::CancelJob);
  if (!response.ok()) return FailJob(session, id, response.status());
  const v1::Job& job = response->job();
  if (line.wait && leaving != nullptr && !IsEnded(job.state())) {
    leaving->push_back(job);
    return kExitOk;
  }
  if (line.wait && !IsEnded(job.state())) {
    const absl::StatusOr<v1::Job> ended = AwaitJob(session, job, wait, nullptr);
    if (!ended.ok()) return FailJob(session, id, ended.status());
    return AddCancelled(session, *ended, *wait, results);
  }
  if (job.state() == v1::JOB_STATE_CANCELLING && !job.store_error().empty())
    session->console().err << "fsdpctl: " << job.id() << ": " << OneLine(job.reason())
                           << "; if the coordinator stops first, the job continues\n";
  const bool is_too_late =
      response->job().state() == v1::JOB_STATE_SUCCEEDED || response->job().state() == v1::JOB_STATE_FAILED;
  return results->Add(job, absl::StrCat(is_too_late ? "has already " : "", StateName(job.state())));
}

// The exit code of several jobs is that of the last error.
void MergeExitCode(int one, int* code) {
  if (one != kExitOk) *code = one;
}

// The states in which a command applies to a job that was selected by array or labels.
struct Choice {
  bool (*takes)(const v1::Job& job);
  const char *before, *after;  // Message if it applies to none: before + selection + after.
};

constexpr Choice kNotEnded = {[](const v1::Job& job) { return !IsEnded(job.state()); }, "every job ",
                              " has ended already"};
constexpr Choice kEnded = {[](const v1::Job& job) { return IsEnded(job.state()); }, "no job ", " has ended"};
// Includes paused jobs: a preempted job would resume by itself, and an explicit pause holds it.
constexpr Choice kPausable = {
    [](const v1::Job& job) { return !IsEnded(job.state()) && job.state() != v1::JOB_STATE_CANCELLING; },
    "every job ", " has ended already, or is being cancelled"};

constexpr Choice kPaused = {[](const v1::Job& job) {
                              return job.state() == v1::JOB_STATE_PAUSED ||
                                     job.state() == v1::JOB_STATE_PAUSING;
                            },
                            "no job ", " is paused"};
constexpr Choice kRetryable = {[](const v1::Job& job) {
                                 return job.state() == v1::JOB_STATE_FAILED ||
                                        job.state() == v1::JOB_STATE_CANCELLED;
                               },
                               "no job ", " has failed or was cancelled"};

// The ids on the command line, or the jobs of --array or --selector in the states of `choice`. If there are
// none, reports that and sets `code`.
std::vector<std::string> ChosenIds(Session* session, const Choice& choice, int* code) {
  const CommandLine& line = session->line();
  if (line.array.empty() && line.selector.empty()) return line.jobs;
  const absl::StatusOr<v1::ListJobsResponse> all = ListSelectedJobs(session);
  if (!all.ok()) *code = session->Fail(all.status());
  if (!all.ok()) return {};
  if (all->jobs().empty() && line.selector.empty()) *code = ReportUnknownArray(session);
  std::vector<std::string> ids;
  for (const v1::Job& job : all->jobs()) {
    if (choice.takes(job)) ids.push_back(job.id());
  }
  std::ostream& err = session->console().err;
  const std::string named = line.selector.empty() ? absl::StrCat("of array ", line.array)
                                                  : absl::StrCat("with ", OneLine(line.selector));
  if (all->jobs().empty() && !line.selector.empty()) {
    err << "fsdpctl: no jobs match the selector " << OneLine(line.selector) << " [JOB_NOT_FOUND]\n";
    *code = kExitNotFound;
  } else if (ids.empty() && !all->jobs().empty()) {
    err << choice.before << named << choice.after << "\n";
  }
  return ids;
}

// An error does not stop the loop. All jobs are cancelled before the first one is awaited.
int RunCancel(Session* session, Results* results) {
  int code = kExitOk;
  const std::vector<std::string> ids = ChosenIds(session, kNotEnded, &code);
  Wait wait = WaitOf(session->line());
  std::vector<v1::Job> leaving;
  for (const std::string& id : ids)
    MergeExitCode(CancelOne(session, id, &wait, ids.size() > 1 ? &leaving : nullptr, results), &code);
  for (const v1::Job& job : leaving) {
    const absl::StatusOr<v1::Job> ended = AwaitJob(session, job, &wait, nullptr);
    if (absl::IsCancelled(ended.status())) return session->Fail(ended.status());
    MergeExitCode(ended.ok() ? AddCancelled(session, *ended, wait, results)
                             : FailJob(session, job.id(), ended.status()),
                  &code);
  }
  return code;
}

// Reports a job after `pause --wait`. The command fails if steps or GPU memory were lost, because a pause
// promises that they are not.
int AddPaused(Session* session, const v1::Job& job, Results* results) {
  std::ostream& err = session->console().err;
  if (job.state() == v1::JOB_STATE_PAUSING) {
    results->Add(job, StateName(job.state()));
    err << "fsdpctl: " << job.id() << " is not paused yet: " << OneLine(job.reason())
        << " [STATE_NOT_REACHED]\n";
    return kExitFailed;
  }
  if (job.state() != v1::JOB_STATE_PAUSED) {
    results->Add(job, StateName(job.state()));
    if (job.state() == v1::JOB_STATE_SUCCEEDED) return kExitOk;
    err << "fsdpctl: " << job.id() << " is not paused: " << OneLine(job.reason()) << " [STATE_NOT_REACHED]\n";
    return kExitFailed;
  }
  results->Add(
      job,
      absl::StrCat("paused", job.pause().step() > 0 ? absl::StrCat(" after step ", job.pause().step()) : ""));
  if (job.pause().lost_steps() == 0 && job.pause().held_memory().empty()) return kExitOk;
  err << "fsdpctl: " << OneLine(job.reason()) << " [STATE_NOT_REACHED]\n";
  return kExitFailed;
}

// Reports the steps that `--grace 0` loses.
void WarnOfLoss(const v1::Job& job, Session* session) {
  const int64_t saved = job.checkpoints().empty() ? 0 : job.checkpoints().rbegin()->step();
  const int64_t lost = job.last_step().step() - std::max(saved, job.restored().step());
  if (session->line().grace_seconds != 0 || job.state() != v1::JOB_STATE_PAUSING || lost <= 0) return;
  session->console().err << "--grace 0 does not save: " << lost << (lost == 1 ? " step" : " steps")
                         << (saved > 0 ? absl::StrCat(" after step ", saved) : std::string())
                         << (lost == 1 ? " is lost" : " are lost")
                         << (saved > 0 ? "\n" : ", and the job will restart from step 1\n");
}

int AwaitPause(Session* session, const v1::Job& job, Wait* wait, Results* results) {
  // Stop at unconfirmed ranks too: a lost node may never come back.
  const auto until = [](const v1::Job& now) {
    return now.state() != v1::JOB_STATE_PAUSING || now.pause().unconfirmed_size() > 0;
  };
  const absl::StatusOr<v1::Job> left = AwaitJob(session, job, wait, until);
  if (!left.ok()) return FailJob(session, job.id(), left.status());
  if (until(*left)) return AddPaused(session, *left, results);
  results->Add(*left, StateName(left->state()));
  return ReportTimeout(session, *left, *wait, "pause");
}

// All jobs are paused before the first one is awaited.
int RunPause(Session* session, Results* results) {
  const CommandLine& line = session->line();
  Wait wait = WaitOf(line);
  int code = kExitOk;
  std::vector<v1::Job> leaving;
  for (const std::string& id : ChosenIds(session, kPausable, &code)) {
    const auto response = Change(session, id, &CoordinatorClient::PauseJob);
    if (!response.ok()) {
      MergeExitCode(FailJob(session, id, response.status()), &code);
      continue;
    }
    WarnOfLoss(response->job(), session);
    if (line.wait) leaving.push_back(response->job());
    if (!line.wait) results->Add(response->job(), StateName(response->job().state()));
  }
  for (const v1::Job& job : leaving) MergeExitCode(AwaitPause(session, job, &wait, results), &code);
  return code;
}

int ResumeOne(Session* session, const std::string& id, Results* results) {
  const auto response = Change(session, id, &CoordinatorClient::ResumeJob);
  if (!response.ok()) return FailJob(session, id, response.status());
  return results->Add(response->job(), StateName(response->job().state()));
}

int RetryOne(Session* session, const std::string& id, Results* results) {
  // The coordinator treats a retry of a running job as a repeated call and returns OK.
  const absl::StatusOr<v1::Job> now = GetJob(&session->client(), id);
  const v1::JobState state = now.ok() ? now->state() : v1::JOB_STATE_UNSPECIFIED;
  if (state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_STARTING) {
    const std::string& job = now->id();
    session->console().err << "fsdpctl: job " << job << " cannot be retried: it is " << StateName(state)
                           << "; `fsdpctl pause " << job
                           << "` and `resume` restart its ranks, `fsdpctl cancel " << job
                           << "` ends it [JOB_NOT_ENDED]\n";
    return kExitFailed;
  }
  const auto response = Change(session, id, &CoordinatorClient::RetryJob);
  if (!response.ok()) return FailJob(session, id, response.status());
  return results->Add(response->job(), StateName(response->job().state()));
}

int DeleteOne(Session* session, const std::string& id, Results* results) {
  const auto response = Change(session, id, &CoordinatorClient::DeleteJob);
  if (!response.ok()) return FailJob(session, id, response.status());
  const v1::Job& job = response->job();
  const std::string dir = job.resolved().checkpoint().dir();
  const bool saved = !dir.empty() && !job.checkpoints().empty();
  results->Add(job, saved ? absl::StrCat("deleted; its checkpoints remain in ", OneLine(dir)) : "deleted");
  if (response->unconfirmed_nodes().empty()) return kExitOk;
  session->console().err << absl::StrCat(
      job.id(), ": warning: its ranks may still run on lost node ",
      OneLine(absl::StrJoin(response->unconfirmed_nodes(), ", ")),
      dir.empty() ? "" : absl::StrCat(" and hold the lock of ", OneLine(dir)),
      "; make sure that the machine is off or runs no fsdpd-rank process\n");
  return kExitOk;
}

// Runs a command for each job. An error does not stop the loop, as for cancel and pause.
int RunEach(Session* session, const Choice& choice, int (*run)(Session*, const std::string&, Results*),
            Results* results) {
  int code = kExitOk;
  for (const std::string& id : ChosenIds(session, choice, &code))
    MergeExitCode(run(session, id, results), &code);
  return code;
}

}  // namespace

std::optional<int> RunLifecycleCommand(Session* session) {
  const std::string& command = session->line().command;
  Results results(session);
  if (command == "cancel") return results.End(RunCancel(session, &results));
  if (command == "pause") return results.End(RunPause(session, &results));
  if (command == "resume") return results.End(RunEach(session, kPaused, ResumeOne, &results));
  if (command == "retry") return results.End(RunEach(session, kRetryable, RetryOne, &results));
  if (command == "delete") return results.End(RunEach(session, kEnded, DeleteOne, &results));
  return std::nullopt;
}

}  // namespace fsdpd
