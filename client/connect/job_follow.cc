#include "client/connect/job_follow.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include "client/text/job_text.h"

namespace fsdpd {
namespace {

// Position in a job's updates, from which the watch resumes after a lost connection.
class Cursor {
 public:
  explicit Cursor(JobObserver* observer) : observer_(*observer) {}

  void Take(const v1::WatchJobResponse& update) {
    if (lost()) observer_.OnConnectionBack();
    lost_since_ = absl::InfiniteFuture();
    if (update.has_job()) TakeJob(update.job());
    if (update.has_step()) TakeStep(update.step());
  }

  void Lose(const absl::Status& why) {
    if (lost()) return;
    lost_since_ = absl::Now();
    observer_.OnConnectionLost(why);
  }

  const v1::Job& job() const { return job_; }
  absl::Time lost_since() const { return lost_since_; }

 private:
  bool lost() const { return lost_since_ != absl::InfiniteFuture(); }

  void TakeJob(const v1::Job& job) {
    if (job.revision() == job_.revision()) return;
    if (job.attempt() != job_.attempt()) step_ = 0;
    job_ = job;
    observer_.OnJob(job_);
  }

  void TakeStep(const v1::StepReport& report) {
    if (report.step() <= step_) return;
    step_ = report.step();
    observer_.OnStep(report);
  }

  JobObserver& observer_;
  v1::Job job_;
  int64_t step_ = 0;
  absl::Time lost_since_ = absl::InfiniteFuture();
};

}  // namespace

bool Outage::IsTolerable(const absl::Status& status) {
  const absl::Time now = absl::Now();
  if (status.ok()) heard_ = now;
  const bool away = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return away && now - heard_ < FollowOptions().reconnect_for;
}

absl::StatusOr<v1::Job> FollowJob(CoordinatorClient* client, const std::string& id,
                                  const FollowOptions& options, Interrupt* interrupt, JobObserver* observer) {
  Cursor cursor(observer);
  const auto is_done = [&] {
    if (cursor.job().id().empty()) return false;  // No update has arrived.
    return IsEnded(cursor.job().state()) || (options.until && options.until(cursor.job()));
  };
  // Ends a stream on behalf of the caller's interrupt, or once the condition is met.
  Interrupt enough;
  const Interrupt::Scope scope(interrupt, [&enough] { enough.Fire(); });
  while (true) {
    v1::WatchJobRequest request;
    request.set_id(id);
    request.set_after_revision(cursor.job().revision());
    absl::Status status = client->WatchJob(request, &enough, [&](const auto& update) {
      cursor.Take(update);
      if (is_done() && !IsEnded(cursor.job().state())) enough.Fire();
    });
    if (is_done()) return cursor.job();
    if (interrupt->fired()) return absl::CancelledError("interrupted");
    // A coordinator that shuts down may end the stream with OK or cancel it.
    const bool went_away = status.ok() || absl::IsUnavailable(status) || absl::IsCancelled(status);
    if (!went_away) return status;
    if (!absl::IsUnavailable(status)) status = absl::UnavailableError("the coordinator closed the stream");
    cursor.Lose(status);
    if (absl::Now() - cursor.lost_since() >= options.reconnect_for) {
      return absl::UnavailableError(absl::StrCat("no connection for ",
                                                 absl::FormatDuration(options.reconnect_for), ": ",
                                                 std::string(status.message())));
    }
    if (interrupt->WaitFor(absl::ToChronoNanoseconds(options.pause)))
      return absl::CancelledError("interrupted");
  }
}

}  // namespace fsdpd
