#include "client/connect/follow_screen.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "client/spec/spec_print.h"
#include "client/text/job_description.h"
#include "client/text/job_text.h"
#include "client/text/message_output.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
constexpr absl::Duration kPlainInterval = absl::Seconds(1);
constexpr int64_t kPlainSteps = 10;

// Moves the cursor to the start of the line and erases the line.
constexpr char kClearLine[] = "\r\x1b[2K";

const char* ColorOf(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_SUCCEEDED:
      return "\x1b[32m";
    case v1::JOB_STATE_FAILED:
    case v1::JOB_STATE_STOPPING:
      return "\x1b[31m";
    case v1::JOB_STATE_CANCELLED:
    case v1::JOB_STATE_CANCELLING:
    case v1::JOB_STATE_PAUSING:
    case v1::JOB_STATE_PAUSED:
      return "\x1b[33m";
    default:
      return "\x1b[36m";
  }
}

}  // namespace

absl::Status FollowScreen::Record(const std::string& path) {
  errno = 0;
  record_path_ = path;
  record_.open(path, std::ios::app);
  if (record_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--record ", path, ": ", std::strerror(errno), " [FILE_ERROR]"));
}

void FollowScreen::OnJob(const v1::Job& job) {
  if (job.attempt() != job_.attempt()) {
    history_.Clear();
    printed_step_ = 0;
    recorded_step_ = 0;
  }
  const v1::Job before = std::exchange(job_, job);
  if (output_ != "table") return PrintUpdate(job);
  PrintState(job);
  // Checkpoints that existed when the watch started are not reported.
  if (!before.id().empty()) PrintCheckpoints(before);
}

void FollowScreen::PrintCheckpoints(const v1::Job& before) {
  for (const std::string& line : NewJobLines(before, job_)) {
    EndLiveLine();
    console_.out << job_.id() << " " << line << "\n" << std::flush;
  }
}

void FollowScreen::PrintState(const v1::Job& job) {
  const std::string reason = ManyLines(job.reason());
  const std::string text = absl::StrCat(StateName(job.state()), reason.empty() ? "" : ": ", reason);
  if (text == last_state_text_) return;
  last_state_text_ = text;
  if (IsEnded(job.state())) return;  // Finish() prints the final state.
  EndLiveLine();
  const std::string state = StateName(job.state());
  console_.out << job.id() << " " << (console_.color ? ColorOf(job.state()) : "") << state
               << (console_.color ? "\x1b[0m" : "") << text.substr(state.size()) << "\n"
               << std::flush;
}

void FollowScreen::OnStep(const v1::StepReport& report) {
  history_.Add(report);
  RecordStep(report);
  if (output_ != "table") return PrintUpdate(report);
  if (report.has_evaluation()) {
    EndLiveLine();
    console_.out << absl::StrFormat("%s validation loss %.4f after step %d\n", job_.id(),
                                    report.evaluation().loss(), report.step())
                 << std::flush;
  }
  const int64_t total_steps = TotalSteps(job_);
  const Progress progress = ProgressOf(report, total_steps, history_.median_step_seconds());
  const absl::Duration since = console_.clock->Now() - printed_at_;
  const bool last = report.step() >= total_steps;
  if (console_.terminal) {
    if (!last && since < kRedrawInterval) return;
    DrawLive(ProgressBar(progress, console_.width()));
  } else {
    if (!last && report.step() - printed_step_ < kPlainSteps && since < kPlainInterval) return;
    console_.out << ProgressLine(progress) << "\n" << std::flush;
  }
  printed_step_ = report.step();
  printed_at_ = console_.clock->Now();
}

void FollowScreen::RecordStep(const v1::StepReport& report) {
  if (!record_.is_open()) return;
  ReportGap(report.step());
  recorded_step_ = report.step();
  errno = 0;
  record_ << ToJsonLine(report) << "\n" << std::flush;
  if (record_) return;
  EndLiveLine();
  console_.err << "--record " << record_path_ << ": " << std::strerror(errno)
               << "; the record ends before step " << report.step() << "\n"
               << std::flush;
  record_.close();
  record_failed_ = true;
}

// The coordinator does not store step reports, so those sent while disconnected are lost. A record may start
// at any step.
void FollowScreen::ReportGap(int64_t next_step) {
  if (recorded_step_ == 0 || next_step <= recorded_step_ + 1) return;
  EndLiveLine();
  console_.err << "--record " << record_path_ << ": steps " << recorded_step_ + 1 << " to " << next_step - 1
               << " were not received and are missing\n"
               << std::flush;
}

void FollowScreen::OnConnectionLost(const absl::Status& why) {
  EndLiveLine();
  console_.err << "connection lost (" << OneLine(why.message()) << "); reconnecting\n" << std::flush;
}

void FollowScreen::OnConnectionBack() {
  EndLiveLine();
  console_.err << "connected again\n" << std::flush;
}

void FollowScreen::Finish(const v1::Job& job) {
  EndLiveLine();
  if (record_.is_open()) ReportGap(job.last_step().step() + 1);
  if (output_ == "table") console_.out << Summary(job, history_) << std::flush;
}

void FollowScreen::DrawLive(const std::string& line) {
  // A terminal that became narrower has wrapped the live line, so its start is `up` rows above the cursor.
  const int width = console_.width();
  const int up = live_ && width > 0 && live_columns_ > width ? (live_columns_ - 1) / width : 0;
  console_.out << (live_ ? "" : "\x1b[?25l");
  if (up > 0) console_.out << "\r\x1b[" << up << "A\x1b[J";  // Move up, and erase everything below.
  console_.out << kClearLine << line << std::flush;
  live_ = true;
  live_columns_ = static_cast<int>(line.size());
}

// Leaves the last state of the line on the screen; later output starts below it.
void FollowScreen::EndLiveLine() {
  if (!live_) return;
  console_.out << "\n\x1b[?25h" << std::flush;
  live_ = false;
}

void FollowScreen::PrintUpdate(const google::protobuf::Message& message) {
  console_.out << (output_ == "json" ? ToJsonLine(message) + "\n" : "---\n" + Rendered(message, output_))
               << std::flush;
}

}  // namespace fsdpd
