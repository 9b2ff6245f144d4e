// Commands on steps: `get JOB --steps` and `export` print or convert the step history page by page; `get JOB
// --timeline` prints the timeline of the newest step.
#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/commands/step_export.h"
#include "client/connect/job_choice.h"
#include "client/connect/outcome.h"
#include "client/spec/spec_print.h"
#include "client/text/message_output.h"
#include "client/text/step_table.h"
#include "client/text/text_table.h"
#include "client/text/timeline_text.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

constexpr int kPage = 5000;

// Calls `on_page` with each page until it returns false. Returns the exit code, which is kExitUnavailable if
// some steps are on a node that cannot be read now.
int ReadSteps(Session* session, const std::string& job_id,
              const std::function<bool(const v1::ListStepsResponse&)>& on_page) {
  const CommandLine& line = session->line();
  std::ostream& err = session->console().err;
  v1::ListStepsRequest request;
  request.set_id(job_id);
  if (line.attempt.has_value()) request.set_attempt(*line.attempt);
  request.set_from_step(line.first_step);
  request.set_to_step(line.last_step);
  request.set_every(line.every_step);
  request.set_page_size(kPage);
  bool unread = false;
  for (;;) {
    if (session->console().interrupt->fired()) return kExitInterrupted;
    const absl::StatusOr<v1::ListStepsResponse> page = session->client().ListSteps(request);
    if (!page.ok()) return session->Fail(page.status());
    if (!on_page(*page)) return unread ? kExitUnavailable : kExitOk;
    session->console().out << std::flush;
    for (const auto& missing : page->missing()) {
      err << "fsdpctl: steps " << missing.first() << " to " << missing.last()
          << " are missing: no reachable node has them [STEPS_MISSING]\n";
    }
    for (const auto& node : page->unread()) {
      if (!std::exchange(unread, true))
        err << "fsdpctl: these nodes cannot be read and may have more steps: [STEPS_MISSING]\n";
      err << "  " << OneLine(node.node()) << ": " << OneLine(node.error()) << "\n";
    }
    if (page->next_step() == 0) return unread ? kExitUnavailable : kExitOk;
    request.set_from_step(page->next_step());
  }
}

// Output file that is replaced atomically: Commit() renames the temporary file, and without Commit() it is
// removed.
class NewFile {
 public:
  // TensorBoard must not read the incomplete file, so its temporary name does not contain "tfevents".
  NewFile(const std::string& directory, const std::string& name)
      : path_(absl::StrCat(directory, "/", name)),
        temporary_(absl::StrCat(directory, "/.fsdpctl-export.", getpid(), ".tmp")),
        out_(temporary_, std::ios::binary),
        error_(out_.good() ? 0 : errno) {}
  ~NewFile() {
    if (!committed_) std::remove(temporary_.c_str());
  }
  void Write(const std::string& text) {
    if (error_ == 0 && !(out_ << text).good()) error_ = errno;
  }
  bool good() const { return error_ == 0; }
  // The write error, or "".
  std::string error() const { return good() ? "" : absl::StrCat(path_, ": ", std::strerror(error_)); }
  bool Replaces() const { return fs::exists(path_); }
  std::string Commit() {
    if (good()) {
      out_.close();
      committed_ = out_.good() && std::rename(temporary_.c_str(), path_.c_str()) == 0;
      if (!committed_) error_ = errno;
    }
    return error();
  }

 private:
  const std::string path_;
  const std::string temporary_;
  std::ofstream out_;
  int error_;
  bool committed_ = false;
};

// Creates the directory of --out if necessary. Returns an error text, or "".
std::string MakeDirectory(const std::string& directory) {
  std::error_code error;
  if (fs::is_directory(directory, error)) return "";
  if (fs::exists(directory, error)) return "is not a directory";
  fs::create_directory(directory, error);  // Not recursive, so that a typo does not create a tree.
  return error ? error.message() : "";
}

// Reports a usage error and returns true unless the command line names exactly one job.
bool LacksSingleJob(Session* session, const char* flag) {
  if (session->line().jobs.size() == 1) return false;
  session->console().err << "fsdpctl: " << flag << " requires exactly one job, for example `fsdpctl get JOB "
                         << flag << "` [INVALID_FLAG]\n";
  return true;
}

}  // namespace

int RunStepTimeline(Session* session) {
  if (LacksSingleJob(session, "--timeline")) return kExitUsage;
  FSDPD_ASSIGN_OR_FAIL(const v1::Job job, session, FindJob(&session->client(), session->line().jobs[0]));
  v1::GetStepTimelineRequest request;
  request.set_id(job.id());
  FSDPD_ASSIGN_OR_FAIL(const v1::GetStepTimelineResponse timeline, session,
                       session->client().GetStepTimeline(request));
  if (session->line().output != "table") return session->Show(timeline);
  session->console().out << StepTimelineText(timeline);
  return kExitOk;
}

int RunStepHistory(Session* session) {
  const CommandLine& line = session->line();
  if (LacksSingleJob(session, "--steps")) return kExitUsage;
  FSDPD_ASSIGN_OR_FAIL(const v1::Job job, session, FindJob(&session->client(), line.jobs[0]));
  std::ostream& out = session->console().out;
  bool first = true;
  return ReadSteps(session, job.id(), [&](const v1::ListStepsResponse& page) {
    if (line.output == "csv") {
      if (std::exchange(first, false)) out << StepCsvHeader();
      for (const v1::StepRecord& step : page.steps()) out << StepCsvRow(step);
    } else if (IsData(line.output)) {
      for (const v1::StepRecord& step : page.steps()) out << RenderedItem(step, line.output);
    } else {
      TextTable table(StepTableHeader());
      for (const v1::StepRecord& step : page.steps()) table.Add(StepTableRow(step));
      const std::vector<std::string> rows = table.Rows(0, session->console().width());
      for (size_t i = std::exchange(first, false) ? 0 : 1; i < rows.size(); ++i) out << rows[i];
    }
    return static_cast<bool>(out);
  });
}

int RunExport(Session* session) {
  const CommandLine& line = session->line();
  Console& console = session->console();
  FSDPD_ASSIGN_OR_FAIL(const v1::Job job, session, FindJob(&session->client(), line.job));
  if (const std::string error = MakeDirectory(line.out); !error.empty()) {
    console.err << "fsdpctl: --out " << line.out << ": " << error << " [FILE_ERROR]\n";
    return kExitUsage;
  }
  const bool tensorboard = line.to == "tensorboard";
  // The name is the job's: exported again it takes the place of what was there, and no step is drawn twice.
  const int64_t begin_unix_nanos = job.create_unix_nanos();
  const int64_t begin_seconds = begin_unix_nanos / 1'000'000'000;
  const std::string name = tensorboard ? absl::StrCat("events.out.tfevents.", begin_seconds, ".", job.id())
                                       : absl::StrCat(job.id(), ".wandb-history.jsonl");
  NewFile file(line.out, name);
  if (!file.good()) {
    console.err << "fsdpctl: --out " << file.error() << " [FILE_ERROR]\n";
    return kExitUsage;
  }
  if (tensorboard) file.Write(TensorBoardBegin(static_cast<double>(begin_seconds)));
  int64_t steps = 0;
  const int code = ReadSteps(session, job.id(), [&](const v1::ListStepsResponse& page) {
    for (const v1::StepRecord& step : page.steps())
      file.Write(tensorboard ? TensorBoardStep(step) : WandbStep(step, begin_unix_nanos));
    steps += page.steps_size();
    return file.good();
  });
  if (code != kExitOk && code != kExitUnavailable) return code;
  if (code == kExitUnavailable && file.Replaces()) {
    console.err << "fsdpctl: " << line.out << "/" << name << " was not changed\n";
    return code;
  }
  if (const std::string error = file.Commit(); !error.empty()) {
    console.err << "fsdpctl: --out " << error << " [FILE_ERROR]\n";
    return kExitUsage;
  }
  console.out << line.out << "/" << name << "  " << steps << (steps == 1 ? " step\n" : " steps\n");
  return code;
}

}  // namespace fsdpd
