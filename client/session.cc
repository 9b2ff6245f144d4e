#include "client/session.h"

#include "client/follow_screen.h"
#include "client/job_follow.h"
#include "client/outcome.h"

namespace fsdpd {

Session::Session(const CommandLine& line, Console* console)
    : line_(line), console_(*console), client_(line.server, {absl::Seconds(line.timeout_seconds)}) {}

int Session::Fail(const absl::Status& status) { return ReportError(status, line_.server, &console_); }

absl::Status Session::CheckRecord() const {
  if (line_.record.empty()) return absl::OkStatus();
  return FollowScreen(&console_, line_.output).Record(line_.record);
}

int Session::Follow(const std::string& job_id, bool submitted_now) {
  FollowScreen screen(&console_, line_.output);
  if (!line_.record.empty()) {
    if (const absl::Status status = screen.Record(line_.record); !status.ok()) return Fail(status);
  }
  const absl::StatusOr<v1::Job> job = FollowJob(&client_, job_id, {}, console_.interrupt, &screen);
  if (job.ok()) {
    screen.Finish(*job);
    return ExitCodeOf(job->state());
  }
  screen.Leave();
  if (absl::IsCancelled(job.status())) {
    console_.err << job_id << " goes on; `fsdpctl watch " << job_id << "` shows it again, `fsdpctl cancel "
                 << job_id << "` ends it\n";
    return kExitInterrupted;
  }
  const int code = Fail(job.status());
  if (submitted_now) console_.err << "the job was submitted: " << job_id << "\n";
  return code;
}

}  // namespace fsdpd
