// Command `wait`: blocks until several jobs, which are watched in parallel, meet a condition.
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/job_choice.h"
#include "client/connect/job_follow.h"
#include "client/connect/outcome.h"
#include "client/connect/wait_condition.h"
#include "client/text/job_text.h"
#include "client/text/message_output.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxJobs = 64;  // Each job uses a stream, and a coordinator limits the number of streams.
constexpr auto kPollInterval = std::chrono::milliseconds(500);  // Polls for the deletion of a job.

// Waits for one job, on its own thread.
class Waiter : public JobObserver {
 public:
  Waiter(CoordinatorClient* client, std::string id, const WaitCondition& condition)
      : client_(*client), id_(std::move(id)), condition_(condition) {}

  void Run() {
    status_ = condition_.is_deletion ? AwaitDeletion() : Follow();
    if (verdict_ != WaitVerdict::kNotYet) status_ = absl::OkStatus();
  }
  void Stop() { stop_.Fire(); }

  // Call only after Run() has returned.
  const std::string& id() const { return id_; }
  const v1::Job& job() const { return job_; }
  WaitVerdict verdict() const { return verdict_; }
  const absl::Status& status() const { return status_; }

  void OnJob(const v1::Job& job) override { job_ = job; }
  // Step reports do not change the job's revision, so they are checked here.
  void OnStep(const v1::StepReport& report) override {
    *job_.mutable_last_step() = report;
    if (IsDecided(job_)) stop_.Fire();
  }
  void OnConnectionLost(const absl::Status&) override {}
  void OnConnectionBack() override {}

 private:
  absl::Status Follow() {
    FollowOptions options;
    options.until = [&](const v1::Job& job) { return IsDecided(job); };
    const absl::StatusOr<v1::Job> job = FollowJob(&client_, id_, options, &stop_, this);
    if (job.ok()) IsDecided(*job);
    return job.status();
  }

  // A verdict is final. The job that FollowJob() returns may lack the newest step, which `job_` has, and is
  // empty before the first response.
  bool IsDecided(const v1::Job& job) {
    if (verdict_ == WaitVerdict::kNotYet && !job.id().empty()) verdict_ = Judge(condition_, job);
    return verdict_ != WaitVerdict::kNotYet;
  }

  absl::Status AwaitDeletion() {
    Outage outage;
    do {
      const absl::StatusOr<v1::Job> job = GetJob(&client_, id_);
      if (absl::IsNotFound(job.status())) {
        verdict_ = WaitVerdict::kMet;
        return absl::OkStatus();
      }
      if (outage.IsTolerable(job.status())) continue;
      FSDPD_RETURN_IF_ERROR(job.status());
      job_ = *job;
    } while (!stop_.WaitFor(kPollInterval));
    return absl::CancelledError("interrupted");
  }

  CoordinatorClient& client_;
  const std::string id_;
  const WaitCondition& condition_;
  Interrupt stop_;
  v1::Job job_;
  WaitVerdict verdict_ = WaitVerdict::kNotYet;
  absl::Status status_;
};

// Runs all waiters until they are done, the deadline has passed, or `interrupt` fires.
void RunAll(std::vector<std::unique_ptr<Waiter>>* waiters, absl::Time deadline, Interrupt* interrupt) {
  Mutex mutex;
  size_t running = waiters->size();
  Interrupt over;  // Fires when all waiters are done, or with `interrupt`.
  const Interrupt::Scope scope(interrupt, [&] { over.Fire(); });
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Waiter>& waiter : *waiters) {
    threads.emplace_back([&, one = waiter.get()] {
      one->Run();
      MutexLock lock(&mutex);
      if (--running == 0) over.Fire();
    });
  }
  // WaitFor() does not accept an infinite duration.
  const absl::Duration left = std::min(deadline - absl::Now(), absl::Hours(24) * 365);
  over.WaitFor(absl::ToChronoNanoseconds(left));
  for (const std::unique_ptr<Waiter>& waiter : *waiters) waiter->Stop();
  for (std::thread& thread : threads) thread.join();
}

int ReportResult(Session* session, const Waiter& waiter) {
  const CommandLine& line = session->line();
  Console& console = session->console();
  if (!waiter.status().ok() && !absl::IsCancelled(waiter.status())) return session->Fail(waiter.status());
  const std::string state = StateName(waiter.job().state());
  if (waiter.verdict() == WaitVerdict::kMet) {
    const bool deleted = waiter.job().id().empty() || line.wait_for == "deleted";
    if (line.output != "table") return kExitOk;
    console.out << waiter.id() << " " << (deleted ? "deleted" : state);
    if (waiter.job().has_last_step() && !deleted)
      console.out << " at step " << waiter.job().last_step().step();
    console.out << "\n";
    return kExitOk;
  }
  if (waiter.verdict() == WaitVerdict::kNever) {
    console.err << "fsdpctl: " << waiter.id() << " can no longer reach " << line.wait_for << ": it "
                << (IsEnded(waiter.job().state())
                        ? absl::StrCat("is ", state, ": ", OneLine(waiter.job().reason()))
                        : absl::StrCat("has ", TotalSteps(waiter.job()), " steps"))
                << " [STATE_NOT_REACHED]\n";
    return kExitJobFailed;
  }
  if (console.interrupt->fired()) return kExitInterrupted;
  console.err << "fsdpctl: " << waiter.id() << " did not reach " << line.wait_for << " within --timeout";
  if (!waiter.job().id().empty())
    console.err << "; it is " << state << ": " << OneLine(waiter.job().reason());
  console.err << " [TIMEOUT]\n";
  return kExitTimeout;
}

}  // namespace

int RunWait(Session* session) {
  const CommandLine& line = session->line();
  if (line.jobs.size() > kMaxJobs) {
    session->console().err << "fsdpctl: wait: too many jobs (got " << line.jobs.size() << ", at most "
                           << kMaxJobs << ") [INVALID_FLAG]\n";
    return kExitUsage;
  }
  const absl::StatusOr<WaitCondition> condition = ParseWaitCondition(line.wait_for);
  FSDPD_CHECK(condition.ok());
  std::vector<std::unique_ptr<Waiter>> waiters;
  for (const std::string& id : line.jobs)
    waiters.push_back(std::make_unique<Waiter>(&session->client(), id, *condition));
  const absl::Time deadline = line.wait_timeout_seconds.has_value()
                                  ? absl::Now() + absl::Seconds(*line.wait_timeout_seconds)
                                  : absl::InfiniteFuture();
  RunAll(&waiters, deadline, session->console().interrupt);
  // The exit code is that of the first error.
  int code = kExitOk;
  v1::ListJobsResponse jobs;  // The current jobs, whether or not they met the condition.
  for (const std::unique_ptr<Waiter>& waiter : waiters) {
    const int one = ReportResult(session, *waiter);
    if (code == kExitOk) code = one;
    const bool gone = condition->is_deletion && waiter->verdict() == WaitVerdict::kMet;
    if (!gone && !waiter->job().id().empty()) *jobs.add_jobs() = waiter->job();
  }
  if (line.output == "table") return code;
  session->console().out << (line.jobs.size() == 1 && jobs.jobs_size() == 1
                                 ? Rendered(jobs.jobs(0), line.output)
                                 : Rendered(jobs, line.output));
  return code;
}

}  // namespace fsdpd
